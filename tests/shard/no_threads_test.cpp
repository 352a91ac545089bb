// SPDX-License-Identifier: Apache-2.0
// What becomes of calls for which the system gives no thread: the work is done without, or nothing has happened and
// the same call works once there are threads again.
#include "tests/base/refused_threads.h"
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

constexpr Bytes kSize = kMiB * 20;

class NoThreads : public ShardWork {
protected:
  /// Two sets with a block each on each device.
  void set_up(int devices) {
    if (driver_->device_count() < devices) {
      if (!emulated()) {
        GTEST_SKIP() << "needs " << devices << " devices";
      }
      open(devices, kMiB * 256);
    }
    for (int index = 0; index < devices; ++index) {
      for (Set* set : {&here_, &there_}) {
        ShardOptions options;
        options.name = (set == &here_ ? "here " : "there ") + std::to_string(index);
        options.device = DeviceIndex(index);
        set->shards.push_back(make_shard(options));
        set->blocks.emplace_back(allocate(set->shards.back(), kSize), 0);
      }
    }
    refill(here_);
    refill(there_);
  }
  void TearDown() override {
    here_ = Set();
    there_ = Set();
    ShardWork::TearDown();
  }
  struct Set {
    std::vector<Shard> shards;
    std::vector<std::pair<void*, std::uint64_t>> blocks; // with their seeds, one a device
    ShardSet all() {
      ShardSet set;
      for (Shard& shard : shards) {
        set.push_back(&shard);
      }
      return set;
    }
  };
  /// Writes all blocks, so that the next sleep copies them again.
  void refill(Set& set) {
    for (std::size_t i = 0; i < set.blocks.size(); ++i) {
      auto& [block, seed] = set.blocks[i];
      write(block, content(++seeds_, kSize), static_cast<int>(i));
      seed = seeds_;
    }
  }
  void expect_exact(Set& set) {
    for (std::size_t i = 0; i < set.shards.size(); ++i) {
      const auto& [block, seed] = set.blocks[i];
      EXPECT_EQ(set.shards[i].state(), ShardState::kAwake);
      EXPECT_TRUE(holds(block, seed, kSize, static_cast<int>(i))) << "device " << i;
      set.shards[i].core().check_invariants();
    }
  }
  bool was_logged(const std::string& part) {
    const std::lock_guard<std::mutex> lock(log_mutex_);
    return std::any_of(log_.begin(), log_.end(),
                       [&part](const std::string& line) { return line.find(part) != std::string::npos; });
  }

  Set here_, there_;
  std::uint64_t seeds_ = 0;
};

TEST_F(NoThreads, APrepareInTheBackgroundSaysSoAndLeavesTheShardFree) {
  Shard shard = make_shard();
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  {
    const RefusedThreads none("in the background");
    for (int turn = 0; turn < 2; ++turn) {
      auto prepared = shard.prepare(Shard::Prepare::kBackground);
      EXPECT_CODE(prepared, ErrorCode::kOutOfHostMemory);
      EXPECT_NE(prepared.error().message.find("preparing shard 'weights'"), std::string::npos)
          << prepared.error().message;
    }
    EXPECT_OK(shard.trim()); // no transition is under way
  }
  ASSERT_OK(shard.prepare(Shard::Prepare::kBackground));
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 1, kSize));
}

TEST_F(NoThreads, AFirstSleepPinsWithoutHelpers) {
  for (const int allowed : {0, 2}) {
    open(2, kMiB * 512); // no thread pins yet
    Shard shard = make_shard();
    ASSERT_OK(set_pinning_threads(*driver_, 4));
    void* block = allocate(shard, kMiB * 60);
    fill(block, 1, kMiB * 60);
    {
      const RefusedThreads few("pinning host memory", allowed);
      ASSERT_OK(sleep({&shard}));
      EXPECT_EQ(few.refused(), 1) << "one refusal is enough to know";
    }
    ASSERT_OK(wake({&shard}));
    EXPECT_TRUE(holds(block, 1, kMiB * 60));
  }
}

TEST_F(NoThreads, DevicesSleepOneAfterTheOther) {
  ASSERT_NO_FATAL_FAILURE(set_up(3));
  if (IsSkipped()) {
    return;
  }
  for (const int allowed : {0, 1}) {
    {
      const RefusedThreads few("on several devices", allowed);
      ASSERT_OK(sleep(here_.all()));
      EXPECT_EQ(few.refused(), 1);
    }
    EXPECT_TRUE(was_logged("one after the other"));
    ASSERT_OK(wake(here_.all()));
    expect_exact(here_);
    refill(here_);
  }
}

TEST_F(NoThreads, SwapsGoOnDeviceAfterDevice) {
  for (const int devices : {2, 3}) {
    here_ = Set();
    there_ = Set();
    ASSERT_NO_FATAL_FAILURE(set_up(devices));
    if (IsSkipped()) {
      return;
    }
    ASSERT_OK(sleep(there_.all()));
    for (const bool checked : {false, true}) {
      SleepOptions options;
      options.checked = checked;
      for (int allowed = 0; allowed < devices; ++allowed) {
        // Every kind of thread that a swap starts: those of the devices, and the one that saves on each.
        const RefusedThreads few("swap", allowed);
        ASSERT_OK(swap(here_.all(), there_.all(), options));
        EXPECT_GE(few.refused(), 1);
        std::swap(here_, there_);
        expect_exact(here_);
      }
    }
    ASSERT_OK(sleep(here_.all()));
    ASSERT_OK(wake(there_.all()));
    expect_exact(there_);
  }
}

TEST_F(NoThreads, AnEmulatedStreamNamesTheThreadThatItLacks) {
  if (!emulated()) {
    GTEST_SKIP() << "streams of a GPU are no threads";
  }
  const Bytes size = kMiB * 2;
  Shard shard = make_shard();
  void* block = allocate(shard, size);
  OwnedStream stream = make_stream(); // it has no thread before its first work
  ContextScope scope(device());
  {
    const RefusedThreads none("emulated stream");
    const CUresult refused = table().cuMemsetD8Async(DeviceAddress(block).value(), 7, size.size(), stream.get());
    EXPECT_EQ(refused, CUDA_ERROR_OPERATING_SYSTEM);
    const Error error = driver_error(table(), CallId::cuMemsetD8Async, refused, "filling");
    EXPECT_NE(error.note.find("no thread could be started for the work of an emulated stream"), std::string::npos)
        << error.describe();
    DriverOptions options;
    options.kind = DriverKind::kEmulated;
    options.emulated_memory = kMiB * 16;
    options.faults = "";
    EXPECT_OK(Driver::open(options)); // needs none
  }
  queue_fill(block, size, 7, stream.get());
  synchronize();
  EXPECT_TRUE(is_filled(block, size, 7));
}

TEST_F(NoThreads, ASleepThatFindsNoThreadForItsStreamsLeavesAllAwake) {
  if (!emulated()) {
    GTEST_SKIP() << "streams of a GPU are no threads";
  }
  Shard shard = make_shard();
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  {
    const RefusedThreads none("emulated stream");
    auto slept = sleep({&shard});
    EXPECT_CODE(slept, ErrorCode::kDriverCallFailed);
    EXPECT_NE(slept.error().describe().find("no thread could be started"), std::string::npos)
        << slept.error().describe();
    EXPECT_EQ(shard.state(), ShardState::kAwake);
  }
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 1, kSize));
}

TEST_F(NoThreads, AnEventThatCouldNotBeRecordedIsAsItWas) {
  if (!emulated()) {
    GTEST_SKIP() << "streams of a GPU are no threads";
  }
  ContextScope scope(device());
  CUstream stream = nullptr;
  ASSERT_EQ(table().cuStreamCreate(&stream, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  StreamGate gate;
  gate.hold(table(), stream);
  CUevent event = nullptr;
  ASSERT_EQ(table().cuEventCreate(&event, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  {
    const RefusedThreads none("emulated stream");
    // The legacy stream waits for the other, so the event needs a place in its queue.
    EXPECT_EQ(table().cuEventRecord(event, CU_STREAM_LEGACY), CUDA_ERROR_OPERATING_SYSTEM);
    EXPECT_EQ(table().cuEventQuery(event), CUDA_SUCCESS); // never recorded
  }
  EXPECT_EQ(table().cuEventRecord(event, CU_STREAM_LEGACY), CUDA_SUCCESS);
  EXPECT_EQ(table().cuEventQuery(event), CUDA_ERROR_NOT_READY);
  gate.open();
  EXPECT_EQ(table().cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(table().cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(table().cuStreamDestroy(stream), CUDA_SUCCESS);
}

} // namespace
} // namespace stillwake
