// SPDX-License-Identifier: Apache-2.0
// One-handle blocks, peers, and sets that span devices.
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

class OneHandle : public ShardWork {
protected:
  /// Extents that touch the block.
  static std::vector<PageRange> extents_of(Shard& shard, void* block, Bytes size) {
    std::vector<PageRange> found;
    const Bytes offset = DeviceAddress(block) - shard.core().reservation().base();
    const Pages first = pages_below(offset), end = pages_holding(offset + size);
    for (const Extent& extent : shard.core().extents().extents()) {
      if (extent.pages.first < end && first < extent.pages.end()) {
        found.push_back(extent.pages);
      }
    }
    return found;
  }
};

TEST_F(OneHandle, ABlockHasExactlyOneHandleBeforeAndAfterEveryWake) {
  Shard shard = make_shard();
  const std::vector<Bytes> sizes = {kMiB * 2, kMiB * 5, kMiB * 20};
  std::vector<void*> blocks, between;
  for (Bytes size : sizes) {
    between.push_back(allocate(shard, kKiB * 700));
    blocks.push_back(allocate(shard, size, nullptr, BlockKind::kOneHandle));
  }
  for (int cycle = 0; cycle < 4; ++cycle) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto extents = extents_of(shard, blocks[i], sizes[i]);
      ASSERT_EQ(extents.size(), 1u) << "block " << i << ", cycle " << cycle;
      EXPECT_EQ(extents[0].count, pages_holding(sizes[i])) << "nothing else is behind that handle";
      EXPECT_EQ(DeviceAddress(blocks[i]).value() % kPageBytes.count(), 0u);
      fill(blocks[i], i + 10 * cycle, sizes[i]);
    }
    ASSERT_OK(sleep({&shard}));
    if (cycle == 2) { // a neighbour is gone: the hole beside it changes nothing
      ASSERT_OK(shard.free(between[1]));
    }
    ASSERT_OK(wake({&shard}));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_TRUE(holds(blocks[i], i + 10 * cycle, sizes[i]));
    }
  }
  shard.core().check_invariants();
}

TEST_F(OneHandle, ABlockStaysOnOneHandleWhenASwapBringsItIn) {
  Shard shard = make_shard();
  Shard other = make_shard("other");
  void* block = allocate(shard, kMiB * 20, nullptr, BlockKind::kOneHandle);
  fill(block, 1, kMiB * 20);
  ASSERT_OK(sleep({&shard}));
  for (int i = 0; i < 12; ++i) { // handles of other sizes
    fill(allocate(other, kMiB * 3), 50 + i, kMiB * 3);
  }
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_OK(swap({&other}, {&shard}));
    EXPECT_EQ(extents_of(shard, block, kMiB * 20).size(), 1u);
    EXPECT_TRUE(holds(block, 1, kMiB * 20));
    ASSERT_OK(swap({&shard}, {&other}));
  }
}

class Devices : public ShardWork {
protected:
  void SetUp() override {
    ShardWork::SetUp();
    if (driver_->device_count() < 2) {
      GTEST_SKIP() << "needs two devices";
    }
  }
  Shard make(int index, std::vector<DeviceIndex> peers = {}) {
    ShardOptions options;
    options.name = "on device " + std::to_string(index);
    options.device = DeviceIndex(index);
    options.peers = std::move(peers);
    return make_shard(options);
  }
};

TEST_F(Devices, ASetOverTwoDevicesSleepsAndWakesAsOne) {
  Shard one = make(0), two = make(1);
  void* in_one = allocate(one, kMiB * 6);
  void* in_two = allocate(two, kMiB * 10);
  write(in_one, content(1, kMiB * 6), 0);
  write(in_two, content(2, kMiB * 10), 1);
  for (int cycle = 0; cycle < 2; ++cycle) {
    auto slept = sleep({&one, &two});
    ASSERT_OK(slept);
    EXPECT_EQ(slept->shards_moved, 2u);
    EXPECT_EQ(slept->freed, kMiB * 16);
    auto woken = wake({&two, &one});
    ASSERT_OK(woken);
    EXPECT_EQ(woken->copied, kMiB * 16);
    EXPECT_TRUE(holds(in_one, 1, kMiB * 6, 0));
    EXPECT_TRUE(holds(in_two, 2, kMiB * 10, 1));
  }
}

TEST_F(Devices, WhenTheSecondDeviceIsFullTheFirstStaysAsleepToo) {
  Shard one = make(0), two = make(1);
  void* in_one = allocate(one, kMiB * 6);
  void* in_two = allocate(two, kMiB * 10);
  write(in_one, content(1, kMiB * 6), 0);
  write(in_two, content(2, kMiB * 10), 1);
  ASSERT_OK(sleep({&one, &two}));
  auto neighbour = neighbour_leaving(Pages(4), 1);
  const Bytes free = free_memory(0);
  auto woken = wake({&one, &two});
  EXPECT_CODE(woken, ErrorCode::kOutOfDeviceMemory);
  EXPECT_NE(woken.error().message.find("device 1"), std::string::npos) << woken.error().message;
  EXPECT_EQ(one.state(), ShardState::kAsleep);
  EXPECT_EQ(free_memory(0), free);
  neighbour.clear();
  ASSERT_OK(wake({&one, &two}));
  EXPECT_TRUE(holds(in_one, 1, kMiB * 6, 0));
  EXPECT_TRUE(holds(in_two, 2, kMiB * 10, 1));
}

TEST_F(Devices, WorkOnTheSecondDeviceIsWaitedFor) {
  Shard one = make(0), two = make(1);
  allocate(one, kMiB * 2);
  void* in_two = allocate(two, kMiB * 2);
  OwnedStream stream = make_stream(1);
  StreamGate gate;
  hold(gate, stream.get(), 1);
  queue_fill(in_two, kMiB * 2, 0x77, stream.get(), 1);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gate.open();
  });
  ASSERT_OK(sleep({&one, &two}));
  opener.join();
  ASSERT_OK(wake({&one, &two}));
  EXPECT_TRUE(is_filled(in_two, kMiB * 2, 0x77, 1));
}

TEST_F(Devices, APeerWritesTheShardBeforeAndAfterAWake) {
  Shard shard = make(0, {DeviceIndex(1), DeviceIndex(0), DeviceIndex(1)}); // itself and a repetition mean nothing
  void* block = allocate(shard, kMiB * 4);
  for (int cycle = 0; cycle < 2; ++cycle) {
    queue_fill(block, kMiB * 4, static_cast<unsigned char>(1 + cycle), nullptr, 1); // in flight on the peer
    ASSERT_OK(sleep({&shard}));
    ASSERT_OK(wake({&shard}));
    EXPECT_TRUE(is_filled(block, kMiB * 4, static_cast<unsigned char>(1 + cycle), 0));
    EXPECT_TRUE(is_filled(block, kMiB * 4, static_cast<unsigned char>(1 + cycle), 1));
  }
  // The peer's streams may wait for a wake as well.
  OwnedStream peer = make_stream(1);
  ASSERT_OK(sleep({&shard}));
  auto ticket = wake({&shard}, {peer.get()});
  ASSERT_OK(ticket);
  EXPECT_OK(ticket->wait(peer.get(), block, kMiB));
  ASSERT_OK(ticket->result());
}

/// Answers that no device reaches another, while it lives.
class NoPeers {
public:
  explicit NoPeers(DriverTable& table) : table_(table), real_(table.cuDeviceCanAccessPeer) {
    table_.cuDeviceCanAccessPeer.bind_method<&NoPeers::call>(table_.gate, CallId::cuDeviceCanAccessPeer, *this);
  }
  ~NoPeers() { table_.cuDeviceCanAccessPeer = real_; }
  CUresult call(int* can, CUdevice device, CUdevice peer) {
    asked.emplace_back(device, peer);
    *can = 0;
    return CUDA_SUCCESS;
  }
  std::vector<std::pair<CUdevice, CUdevice>> asked;

private:
  DriverTable& table_;
  decltype(DriverTable::cuDeviceCanAccessPeer) real_;
};

TEST_F(Devices, APeerThatCannotReachTheMemoryIsRefusedAtOnce) {
  NoPeers apart(table());
  ShardOptions options;
  options.name = "reached";
  options.device = DeviceIndex(1);
  options.peers = {DeviceIndex(0)};
  const auto shard = Shard::create(*driver_, options);
  EXPECT_CODE(shard, ErrorCode::kInvalidArgument);
  const std::string& text = shard.error().message;
  EXPECT_NE(text.find("'reached'"), std::string::npos) << text;
  EXPECT_NE(text.find("device 0 as a peer"), std::string::npos) << text;
  EXPECT_NE(text.find("device 1"), std::string::npos) << text;
  using Asked = std::vector<std::pair<CUdevice, CUdevice>>;
  EXPECT_EQ(apart.asked, (Asked{{0, 1}})) << "whether the peer reaches the shard's device, not the other way";
  options.peers = {DeviceIndex(1)}; // itself
  EXPECT_OK(Shard::create(*driver_, options));
  EXPECT_EQ(apart.asked.size(), 1u);
}

TEST_F(Devices, ASwapOverTwoDevicesMovesBoth) {
  Shard out_one = make(0), out_two = make(1), in_one = make(0), in_two = make(1);
  Shard* shards[] = {&in_one, &in_two, &out_one, &out_two};
  void* blocks[4];
  for (int i = 0; i < 4; ++i) {
    blocks[i] = allocate(*shards[i], kMiB * (5 + i));
    write(blocks[i], content(i, kMiB * (5 + i)), i % 2);
  }
  ASSERT_OK(sleep({&in_one, &in_two}));
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_OK(turn == 0 ? swap({&out_one, &out_two}, {&in_one, &in_two})
                        : swap({&in_two, &in_one}, {&out_one, &out_two}));
    for (int i = 0; i < 4; ++i) {
      const bool awake = turn == 0 ? i < 2 : i >= 2;
      EXPECT_EQ(shards[i]->state(), awake ? ShardState::kAwake : ShardState::kAsleep) << i;
      if (awake) {
        EXPECT_TRUE(holds(blocks[i], i, kMiB * (5 + i), i % 2));
      }
    }
  }
}

} // namespace
} // namespace stillwake
