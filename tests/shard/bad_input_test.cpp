// SPDX-License-Identifier: Apache-2.0
// Wrong input has one defined answer each, and changes nothing.
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

class BadInput : public ShardWork {
protected:
  void expect_refused(ShardOptions options) {
    EXPECT_CODE(Shard::create(*driver_, options), ErrorCode::kInvalidArgument);
  }
};

TEST_F(BadInput, ShardsThatCannotBeAreRefused) {
  ShardOptions options;
  expect_refused(options); // no name
  options.name = "odd";
  for (int index : {-1, driver_->device_count(), 1 << 30}) {
    options.device = DeviceIndex(index);
    expect_refused(options);
  }
  options.device = DeviceIndex(0);
  options.peers = {DeviceIndex(99)};
  expect_refused(options);
  options.peers = {};
  options.trust = true;
  expect_refused(options);
  options.policy = Policy::kDiscard;
  expect_refused(options);
  options.trust = false;
  for (std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, (kMiB * 2).count() - 1, ~std::uint64_t{0}}) {
    options.addresses = Bytes(size);
    expect_refused(options);
  }
}

TEST_F(BadInput, ReservationsOfAnySizeThatIsPossibleWorkOrSayWhyNot) {
  ShardOptions options;
  options.name = "large";
  for (std::uint64_t gib : {1ull, 2047ull, 2048ull, 4096ull, 65536ull}) {
    options.addresses = kGiB * gib;
    auto shard = Shard::create(*driver_, options);
    if (shard) {
      EXPECT_OK(shard->allocate(kMiB));
      continue;
    }
    EXPECT_TRUE(shard.error().code == ErrorCode::kInvalidArgument || shard.error().code == ErrorCode::kOutOfHostMemory)
        << shard.error().describe();
    EXPECT_GT(gib, 1024u) << shard.error().describe();
  }
  options.addresses = kMiB * 2 + Bytes(1);
  auto rounded = Shard::create(*driver_, options);
  ASSERT_OK(rounded);
  EXPECT_EQ(rounded->stats().reserved_addresses, kMiB * 4);
}

TEST_F(BadInput, AllocationsThatCannotBeAreRefused) {
  ShardOptions options;
  options.name = "small";
  options.addresses = kMiB * 8;
  Shard shard = make_shard(options);
  for (BlockKind kind : {BlockKind::kShared, BlockKind::kOneHandle}) {
    EXPECT_CODE(shard.allocate(Bytes(0), nullptr, kind), ErrorCode::kInvalidArgument);
    for (std::uint64_t size : {(kMiB * 8).count() + 1, (kGiB * 1024).count(), ~std::uint64_t{0},
                               ~std::uint64_t{0} - 511, std::uint64_t{1} << 63}) {
      EXPECT_CODE(shard.allocate(Bytes(size), nullptr, kind), ErrorCode::kInvalidArgument);
    }
  }
  EXPECT_EQ(shard.stats().blocks, 0u);
  EXPECT_EQ(shard.stats().handles, 0u);
  EXPECT_NE(allocate(shard, kMiB * 8), nullptr);
  EXPECT_CODE(shard.allocate(Bytes(1)), ErrorCode::kOutOfDeviceMemory); // no addresses are left
}

TEST_F(BadInput, MoreThanTheDeviceHasIsOutOfMemoryWithTheFigures) {
  ShardOptions options;
  options.name = "wide";
  options.addresses = driver_->memory(DeviceIndex(0))->total * 4;
  Shard shard = make_shard(options);
  const Bytes wanted = driver_->memory(DeviceIndex(0))->total * 2;
  const Bytes free = free_memory();
  for (BlockKind kind : {BlockKind::kShared, BlockKind::kOneHandle}) {
    auto block = shard.allocate(wanted, nullptr, kind);
    EXPECT_CODE(block, ErrorCode::kOutOfDeviceMemory);
    EXPECT_NE(block.error().message.find(readable(wanted)), std::string::npos) << block.error().message;
    EXPECT_NE(block.error().message.find("free"), std::string::npos) << block.error().message;
  }
  EXPECT_EQ(free_memory(), free);
  EXPECT_EQ(shard.stats().handles, 0u);
}

TEST_F(BadInput, AKindOfBlockThatIsNoneIsRefused) {
  Shard shard = make_shard();
  for (const int kind : {-1, 2, 77}) {
    auto block = shard.allocate(kMiB * 4, nullptr, static_cast<BlockKind>(kind));
    EXPECT_CODE(block, ErrorCode::kInvalidArgument);
    EXPECT_NE(block.error().message.find(std::to_string(kind)), std::string::npos) << block.error().message;
  }
  EXPECT_EQ(shard.stats().blocks, 0u);
}

TEST_F(BadInput, AStreamOfAnotherDeviceIsRefused) {
  if (driver_->device_count() < 2) {
    GTEST_SKIP() << "needs two devices";
  }
  Shard shard = make_shard();
  OwnedStream own = make_stream(0);
  OwnedStream foreign = make_stream(1);
  EXPECT_CODE(shard.allocate(kMiB, foreign.get()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(shard.stats().blocks, 0u);
  void* block = allocate(shard, kMiB, own.get());
  EXPECT_CODE(shard.allocate(kMiB, foreign.get()), ErrorCode::kInvalidArgument);
  ASSERT_OK(shard.free(block, own.get()));
  EXPECT_CODE(shard.allocate(kMiB, foreign.get()), ErrorCode::kInvalidArgument); // a warm block is there
  EXPECT_OK(shard.allocate(kMiB, own.get()));
}

TEST_F(BadInput, PointersThatAreNoBlocksAreNotFreed) {
  Shard shard = make_shard();
  Shard other = make_shard("other");
  auto* block = static_cast<std::byte*>(allocate(shard, kMiB));
  void* elsewhere = allocate(other, kMiB);
  int local = 0;
  for (const void* wrong : {static_cast<const void*>(nullptr), static_cast<const void*>(&local),
                            static_cast<const void*>(block + 512), static_cast<const void*>(block + 1),
                            static_cast<const void*>(elsewhere), reinterpret_cast<const void*>(~std::uintptr_t{0})}) {
    EXPECT_CODE(shard.free(const_cast<void*>(wrong)), ErrorCode::kInvalidArgument);
    EXPECT_CODE(shard.free(const_cast<void*>(wrong), nullptr), ErrorCode::kInvalidArgument);
  }
  ASSERT_OK(shard.free(block));
  EXPECT_CODE(shard.free(block), ErrorCode::kInvalidArgument);
  EXPECT_CODE(shard.free(block, nullptr), ErrorCode::kInvalidArgument);
  EXPECT_OK(other.free(elsewhere));
  EXPECT_FALSE(shard.contains(&local));
  EXPECT_FALSE(shard.contains(nullptr));
  const auto* first = static_cast<const std::byte*>(shard.first_address());
  const std::size_t bytes = shard.stats().reserved_addresses.size();
  EXPECT_TRUE(shard.contains(first) && shard.contains(first + bytes - 1));
  EXPECT_FALSE(shard.contains(first - 1) || shard.contains(first + bytes));
}

TEST_F(BadInput, SetsThatCannotBeAreRefused) {
  Shard shard = make_shard();
  allocate(shard, kMiB);
  DriverOptions settings;
  settings.kind = DriverKind::kEmulated;
  settings.emulated_memory = kMiB * 16;
  settings.faults = "";
  auto second = Driver::open(settings);
  ASSERT_OK(second);
  ShardOptions options;
  options.name = "of another driver";
  auto foreign = Shard::create(*second, options);
  ASSERT_OK(foreign);
  for (const ShardSet& set : {ShardSet{}, ShardSet{nullptr}, ShardSet{&shard, &shard}, ShardSet{&shard, &*foreign}}) {
    EXPECT_CODE(sleep(set), ErrorCode::kInvalidArgument);
    EXPECT_CODE(wake(set), ErrorCode::kInvalidArgument);
    EXPECT_CODE(wake(set, std::vector<Stream>()), ErrorCode::kInvalidArgument);
    EXPECT_CODE(stage_sleep(set), ErrorCode::kInvalidArgument);
    EXPECT_CODE(stage_wake(set), ErrorCode::kInvalidArgument);
  }
  EXPECT_CODE(swap({&shard}, {&*foreign}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(shard.state(), ShardState::kAwake);
}

TEST_F(BadInput, ChunksAndThreadsOutsideOfTheirLimitsAreRefused) {
  Shard shard = make_shard();
  allocate(shard, kMiB);
  ASSERT_OK(sleep({&shard}));
  for (Bytes chunk : {Bytes(0), kMiB * 63, kMiB * 257, Bytes(~std::uint64_t{0})}) {
    WakeOptions options;
    options.chunk = chunk;
    EXPECT_CODE(wake({&shard}, options), ErrorCode::kInvalidArgument);
    EXPECT_EQ(shard.state(), ShardState::kAsleep);
  }
  ASSERT_OK(wake({&shard}));
  for (int count : {-1, 257}) {
    EXPECT_CODE(set_pinning_threads(*driver_, count), ErrorCode::kInvalidArgument);
  }
}

TEST_F(BadInput, ATimeoutOfZeroIsOverAtOnce) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 4);
  fill(block, 1, kMiB * 4);
  SleepOptions sleeping;
  sleeping.timeout = Duration(0);
  const auto slept = sleep({&shard}, sleeping); // quiet already, or too late: both are right
  EXPECT_TRUE(slept || slept.error().code == ErrorCode::kTimedOut);
  ASSERT_OK(sleep({&shard}));
  WakeOptions waking;
  waking.timeout = Duration(0);
  auto neighbour = neighbour_leaving(Pages(1));
  EXPECT_CODE(wake({&shard}, waking), ErrorCode::kTimedOut);
  neighbour.clear();
  ASSERT_OK(wake({&shard}, waking));
  EXPECT_TRUE(holds(block, 1, kMiB * 4));
}

TEST_F(BadInput, ValuesThatNoEnumHasAndNamesThatCannotBePrinted) {
  ShardOptions options;
  options.name = "odd";
  options.policy = static_cast<Policy>(77);
  EXPECT_CODE(Shard::create(*driver_, options), ErrorCode::kInvalidArgument);
  options.policy = Policy::kPreserve;
  options.backing = static_cast<Backing>(9);
  EXPECT_CODE(Shard::create(*driver_, options), ErrorCode::kInvalidArgument);
  options.backing = Backing::kRetain;
  options.host_copy = static_cast<HostCopy>(9);
  EXPECT_CODE(Shard::create(*driver_, options), ErrorCode::kInvalidArgument);
  options.host_copy = HostCopy::kPacked;
  options.name = "two\nlines";
  EXPECT_CODE(Shard::create(*driver_, options), ErrorCode::kInvalidArgument);
  options.name = std::string(257, 'x');
  EXPECT_CODE(Shard::create(*driver_, options), ErrorCode::kInvalidArgument);
}

TEST_F(BadInput, AnEmulatedDeviceIsAtMostOneTebibyte) {
  DriverOptions options;
  options.kind = DriverKind::kEmulated;
  options.faults = "";
  for (const Bytes size : {kGiB * 1025, Bytes(~0ull)}) {
    options.emulated_memory = size;
    EXPECT_CODE(Driver::open(options), ErrorCode::kInvalidArgument);
  }
}

class OwnerWithoutHeap : public ShardOwner {
public:
  std::vector<BlockLiveRanges> live_ranges() override { throw std::bad_alloc(); }
};

TEST_F(BadInput, AHeapWithoutMemoryInTheMiddleEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe"; // in a fork every call answers kLost before it does anything
  OwnerWithoutHeap owner;
  ShardOptions options;
  options.name = "owned";
  options.owner = &owner;
  Shard shard = make_shard(options);
  allocate(shard, kMiB);
  EXPECT_DEATH((void)sleep({&shard}), "stillwake: sleeping: the heap .* no memory left");
  EXPECT_DEATH((void)stage_sleep({&shard}), "stillwake: staging a sleep: the heap .* no memory left");
  EXPECT_DEATH((void)shard.prepare(), "stillwake: preparing: the heap .* no memory left");
}

} // namespace
} // namespace stillwake
