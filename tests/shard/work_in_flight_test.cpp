// SPDX-License-Identifier: Apache-2.0
// Work that is in flight when a shard is put to sleep, or when a block is freed.
#include "tests/shard/stream_work.h"

#include <chrono>

namespace stillwake {
namespace {

using std::chrono::milliseconds;
class WorkInFlight : public ShardWork {};

/// Opens a gate after a while, from a thread of its own.
class LateOpening {
public:
  LateOpening(StreamGate& gate, Duration after)
      : thread_([&gate, after] {
          std::this_thread::sleep_for(after);
          gate.open();
        }) {}
  ~LateOpening() { thread_.join(); }

private:
  std::thread thread_;
};

/// A graph that copies between two blocks, and the stream that it is launched on.
class CopyGraph {
public:
  CopyGraph(DriverTable& table, Device& device, Stream stream, void* to, const void* from, Bytes size)
      : table_(table), device_(device), stream_(stream) {
    ContextScope scope(device_);
    CUgraph graph = nullptr;
    EXPECT_EQ(table_.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    EXPECT_EQ(table_.cuMemcpyDtoDAsync(DeviceAddress(to).value(), DeviceAddress(from).value(), size.size(), stream),
              CUDA_SUCCESS);
    EXPECT_EQ(table_.cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_EQ(table_.cuGraphInstantiateWithFlags(&exec_, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(table_.cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  ~CopyGraph() {
    ContextScope scope(device_);
    EXPECT_EQ(table_.cuGraphExecDestroy(exec_), CUDA_SUCCESS);
  }
  CopyGraph(const CopyGraph&) = delete;
  void launch() {
    ContextScope scope(device_);
    EXPECT_EQ(table_.cuGraphLaunch(exec_, stream_), CUDA_SUCCESS);
  }

private:
  DriverTable& table_;
  Device& device_;
  Stream stream_;
  CUgraphExec exec_ = nullptr;
};

TEST_F(WorkInFlight, FR_A1_ASleepWaitsForASideStreamThatWrites) {
  Shard shard = make_shard();
  OwnedStream side = make_stream();
  void* block = allocate(shard, kMiB * 6); // on the default stream: the side stream was never shown to the shard
  fill(block, 1, kMiB * 6);
  StreamGate gate;
  hold(gate, side.get());
  queue_fill(block, kMiB * 6, 0x5a, side.get());
  const TimePoint begin = std::chrono::steady_clock::now();
  LateOpening opening(gate, milliseconds(500));
  ASSERT_OK(sleep({&shard}));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(400));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(is_filled(block, kMiB * 6, 0x5a));
}

TEST_F(WorkInFlight, FR_A2_GraphReplaysOnThreeStreamsAreTheContentAfterTheWake) {
  Shard shard = make_shard();
  Shard scratch = make_shard("scratch", Policy::kDiscard);
  constexpr Bytes kSize = kMiB * 2;
  std::vector<OwnedStream> streams;
  std::vector<void*> from, to, dropped;
  std::vector<std::unique_ptr<CopyGraph>> graphs;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(make_stream());
    from.push_back(allocate(shard, kSize, streams[i].get()));
    to.push_back(allocate(shard, kSize, streams[i].get()));
    dropped.push_back(allocate(scratch, kSize, streams[i].get()));
    for (void* target : {to[i], dropped[i]}) {
      graphs.push_back(std::make_unique<CopyGraph>(table(), device(), streams[i].get(), target, from[i], kSize));
    }
  }
  if (emulated()) {
    emulation().set_stream_delay(std::chrono::microseconds(200)); // so that replays wait in their streams
  }
  for (int turn = 0; turn < 100; ++turn) {
    for (int i = 0; i < 3; ++i) {
      queue_fill(from[i], kSize, static_cast<unsigned char>(1 + (turn + 80 * i) % 250), streams[i].get());
    }
    for (auto& graph : graphs) {
      graph->launch();
      graph->launch();
    }
    ASSERT_OK(sleep({&shard, &scratch}));
    ASSERT_OK(wake({&scratch, &shard}));
    for (int i = 0; i < 3; ++i) {
      const auto value = static_cast<unsigned char>(1 + (turn + 80 * i) % 250);
      ASSERT_TRUE(is_filled(to[i], kSize, value)) << "turn " << turn << ", stream " << i;
      ASSERT_TRUE(is_zero(dropped[i], kSize)) << "turn " << turn << ", stream " << i;
    }
  }
}

TEST_F(WorkInFlight, FR_A3_AllocateLaunchFreeAtOnceNeitherWaitsNorMixesBytes) {
  Shard shard = make_shard();
  OwnedStream unrelated = make_stream();
  OwnedStream mine = make_stream();
  OwnedStream other = make_stream();
  constexpr Bytes kSize = kKiB * 256;
  constexpr int kTimes = 200;
  auto* kept = static_cast<std::byte*>(allocate(shard, kSize * kTimes, mine.get()));
  void* long_kernel = allocate(shard, kSize, unrelated.get());
  StreamGate gate; // stands for the 2 s kernel: it ends only after all of this
  hold(gate, unrelated.get());
  queue_fill(long_kernel, kSize, 0xee, unrelated.get());
  for (int i = 0; i < kTimes; ++i) {
    const auto value = static_cast<unsigned char>(i % 255 + 1);
    // In turns: freed on its own stream, on none that is named, and after another stream has written.
    const Stream writer = i % 3 == 2 ? other.get() : mine.get();
    void* block = allocate(shard, kSize, writer);
    ASSERT_NE(block, nullptr);
    queue_fill(block, kSize, value, writer);
    queue_copy(kept + kSize.size() * static_cast<std::size_t>(i), block, kSize, writer);
    if (i % 3 == 1) {
      ASSERT_OK(shard.free(block));
    } else {
      ASSERT_OK(shard.free(block, writer));
    }
  }
  {
    ContextScope scope(device());
    EXPECT_EQ(table().cuStreamSynchronize(mine.get()), CUDA_SUCCESS);
    EXPECT_EQ(table().cuStreamSynchronize(other.get()), CUDA_SUCCESS);
    EXPECT_EQ(table().cuStreamQuery(unrelated.get()), CUDA_ERROR_NOT_READY) << "the long kernel was waited for";
  }
  gate.open();
  synchronize();
  for (int i = 0; i < kTimes; ++i) {
    EXPECT_TRUE(
        is_filled(kept + kSize.size() * static_cast<std::size_t>(i), kSize, static_cast<unsigned char>(i % 255 + 1)))
        << i;
  }
  EXPECT_TRUE(is_filled(long_kernel, kSize, 0xee));
  shard.core().check_invariants();
}

} // namespace
} // namespace stillwake
