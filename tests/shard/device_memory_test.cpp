// SPDX-License-Identifier: Apache-2.0
// A device without room: what a wake answers, what it keeps, what it waits for, and who is asked to make room.
#include "tests/shard/stream_work.h"

#include <atomic>

namespace stillwake {
namespace {

using std::chrono::milliseconds;

constexpr Bytes kSize = kMiB * 40;

class DeviceMemoryShort : public ShardWork {
protected:
  void SetUp() override {
    open(1, kMiB * 128);
    shard_.emplace(make_shard());
    block_ = allocate(*shard_, kSize);
    fill(block_, 1, kSize);
    ASSERT_OK(sleep({&*shard_}));
    expect_free_at_least(kSize);
  }
  void TearDown() override {
    shard_.reset();
    ShardWork::TearDown();
  }
  void expect_all_asleep() {
    EXPECT_EQ(shard_->state(), ShardState::kAsleep);
    EXPECT_EQ(shard_->stats().mapped, Bytes(0));
    EXPECT_EQ(shard_->stats().handles, 0u);
  }

  std::optional<Shard> shard_;
  void* block_ = nullptr;
};

TEST_F(DeviceMemoryShort, FR_C1_AWakeWithoutRoomNamesTheFiguresAndChangesNothing) {
  auto neighbour = neighbour_leaving(Pages(7));
  const Bytes free = free_memory();
  const Bytes pinned = host_pinned(*driver_);
  auto woken = wake({&*shard_});
  EXPECT_CODE(woken, ErrorCode::kOutOfDeviceMemory);
  const std::string text = woken.error().describe();
  EXPECT_NE(text.find("needs " + readable(kSize)), std::string::npos) << text;
  EXPECT_NE(text.find("free " + readable(free)), std::string::npos) << text;
  EXPECT_NE(text.find("largest possible " + readable(Bytes(pages_below(free)))), std::string::npos) << text;
  expect_all_asleep();
  EXPECT_EQ(free_memory(), free);
  EXPECT_EQ(host_pinned(*driver_), pinned);
  EXPECT_CODE(wake({&*shard_}), ErrorCode::kOutOfDeviceMemory); // as often as one likes
  neighbour.clear();
  expect_free_at_least(kSize);
  ASSERT_OK(wake({&*shard_}));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(DeviceMemoryShort, FR_C1_OneShardOfASetThatDoesNotFitKeepsAllAsleep) {
  Shard small = make_shard("small");
  void* in_small = allocate(small, kMiB * 4);
  fill(in_small, 2, kMiB * 4);
  ASSERT_OK(sleep({&small}));
  auto neighbour = neighbour_leaving(Pages(20)); // the small one fits, the other only by half a page too few
  EXPECT_CODE(wake({&small, &*shard_}), ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(small.state(), ShardState::kAsleep);
  expect_all_asleep();
  ASSERT_OK(wake({&small}));
  EXPECT_TRUE(holds(in_small, 2, kMiB * 4));
  neighbour.clear();
  ASSERT_OK(wake({&*shard_}));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(DeviceMemoryShort, FR_C2_AFailureAtTheLastCallOfAWakeNeverCostsTheHostCopy) {
  for (CallId call : {CallId::cuMemCreate, CallId::cuMemMap, CallId::cuMemSetAccess, CallId::cuMemcpyHtoDAsync,
                      CallId::cuEventRecord}) {
    SCOPED_TRACE(to_string(call));
    const std::uint64_t before = gate().calls(call);
    ASSERT_OK(wake({&*shard_}));
    const std::uint64_t last = gate().calls(call) - before;
    ASSERT_GT(last, 0u) << to_string(call);
    fill(block_, 1, kSize);
    ASSERT_OK(sleep({&*shard_}));
    fail(call, last);
    EXPECT_FALSE(wake({&*shard_})) << to_string(call);
    heal();
    expect_all_asleep();
    {
      auto scribbler = Physical::create(device(), pages_holding(kSize)); // the pages go to somebody else meanwhile
      EXPECT_OK(scribbler);
    }
    ASSERT_OK(wake({&*shard_}));
    EXPECT_TRUE(holds(block_, 1, kSize)) << to_string(call);
    ASSERT_OK(sleep({&*shard_}));
  }
}

TEST_F(DeviceMemoryShort, FR_C3_AWakeWithATimeoutWaitsForANeighbourThatFreesLate) {
  auto neighbour = neighbour_leaving(Pages(3));
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(200));
    neighbour.clear();
  });
  WakeOptions options;
  options.timeout = std::chrono::seconds(20);
  auto woken = wake({&*shard_}, options);
  late.join();
  ASSERT_OK(woken);
  EXPECT_GE(woken->took, milliseconds(150));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(DeviceMemoryShort, FR_C3_ATimeoutThatEndsSaysSoWithTheFigures) {
  auto neighbour = neighbour_leaving(Pages(3));
  const Bytes free = free_memory();
  WakeOptions options;
  options.timeout = milliseconds(60);
  const TimePoint begin = std::chrono::steady_clock::now();
  auto woken = wake({&*shard_}, options);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(60));
  EXPECT_CODE(woken, ErrorCode::kTimedOut);
  EXPECT_NE(woken.error().message.find(readable(kSize)), std::string::npos) << woken.error().message;
  EXPECT_NE(woken.error().message.find(readable(free)), std::string::npos) << woken.error().message;
  EXPECT_EQ(free_memory(), free);
  expect_all_asleep();
}

TEST_F(DeviceMemoryShort, FR_C3_WhileItWaitsAWakeHoldsNothing) {
  auto neighbour = neighbour_leaving(Pages(3));
  const Bytes free = free_memory();
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    WakeOptions options;
    options.timeout = milliseconds(150);
    EXPECT_CODE(wake({&*shard_}, options), ErrorCode::kTimedOut);
    over = true;
  });
  int all_free = 0;
  while (!over) {
    all_free += free_memory() == free ? 1 : 0;
  }
  waiter.join();
  EXPECT_GT(all_free, 0);
  EXPECT_EQ(free_memory(), free);
}

/// An owner with a cache of device memory, as PyTorch's allocator is.
class CachingOwner : public ShardOwner {
public:
  bool memory_is_short(DeviceIndex index, Bytes needed) override {
    ++asked;
    last_needed = needed;
    last_device = index;
    const bool gives = !cache.empty();
    cache.clear();
    return gives;
  }
  std::vector<Physical> cache;
  int asked = 0;
  Bytes last_needed;
  DeviceIndex last_device{-1};
};

TEST_F(DeviceMemoryShort, FR_C4_AnOwnersCacheOf90PercentIsGivenUpBeforeAWakeFails) {
  CachingOwner owner;
  ShardOptions options;
  options.name = "training";
  options.owner = &owner;
  Shard awake = make_shard(options); // not even part of the wake
  owner.cache = neighbour_leaving(Pages(5));
  ASSERT_OK(wake({&*shard_}));
  EXPECT_EQ(owner.asked, 1);
  EXPECT_GE(owner.last_needed, kSize);
  EXPECT_EQ(owner.last_device, DeviceIndex(0));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(DeviceMemoryShort, FR_C4_AnOwnerWithNothingToGiveIsAskedOnceAndTheWakeFails) {
  CachingOwner owner;
  ShardOptions options;
  options.name = "training";
  options.owner = &owner;
  Shard awake = make_shard(options);
  auto neighbour = neighbour_leaving(Pages(5));
  EXPECT_CODE(wake({&*shard_}), ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(owner.asked, 1);
  expect_all_asleep();
}

TEST_F(DeviceMemoryShort, FR_C6_FiguresAreOurOwnWhateverANeighbourTakesMeanwhile) {
  Report quiet_wake = *wake({&*shard_});
  Report quiet_sleep = *sleep({&*shard_});
  std::atomic<bool> over{false};
  std::thread neighbour([&] {
    while (!over) {
      auto taken = Physical::create(device(), Pages(8));
    }
  });
  for (int turn = 0; turn < 5; ++turn) {
    auto woken = wake({&*shard_});
    ASSERT_OK(woken);
    auto slept = sleep({&*shard_});
    ASSERT_OK(slept);
    EXPECT_EQ(woken->mapped, kSize);
    EXPECT_EQ(woken->copied, quiet_wake.copied);
    EXPECT_EQ(slept->live, quiet_sleep.live);
    EXPECT_EQ(slept->freed, kSize);
    EXPECT_EQ(slept->not_freed, Bytes(0));
  }
  over = true;
  neighbour.join();
}

} // namespace
} // namespace stillwake
