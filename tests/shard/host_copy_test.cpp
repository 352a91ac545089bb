// SPDX-License-Identifier: Apache-2.0
// A host copy that can be read and written while its shard sleeps.
#include "tests/shard/stream_work.h"

#include <cstring>

namespace stillwake {
namespace {

constexpr Bytes kSize = kMiB * 5 + Bytes(512);

class ReadableHostCopy : public ShardWork {
protected:
  Shard make(Policy policy = Policy::kPreserve, ShardOwner* owner = nullptr) {
    ShardOptions options;
    options.name = "readable";
    options.host_copy = HostCopy::kReadable;
    options.policy = policy;
    options.owner = owner;
    return make_shard(options);
  }
};

TEST_F(ReadableHostCopy, HoldsTheBytesAtOneDistanceFromTheDeviceAddresses) {
  Shard shard = make();
  void* small = allocate(shard, kKiB * 3);
  auto* block = static_cast<std::byte*>(allocate(shard, kSize));
  fill(small, 1, kKiB * 3);
  fill(block, 2, kSize);
  std::byte* first = nullptr;
  for (int cycle = 0; cycle < 2; ++cycle) {
    ASSERT_OK(sleep({&shard}));
    const auto wanted = content(2, kSize);
    std::byte* start = *shard.host_address(block);
    EXPECT_EQ(std::memcmp(start, wanted.data(), kSize.size()), 0);
    EXPECT_EQ(*shard.host_address(block + 4099), start + 4099);
    EXPECT_EQ(*shard.host_address(block + kSize.size() - 1), start + kSize.size() - 1);
    EXPECT_EQ(std::memcmp(*shard.host_address(small), content(1, kKiB * 3).data(), (kKiB * 3).size()), 0);
    EXPECT_EQ(cycle == 0 ? start : first, start) << "the place is the same in every cycle";
    first = start;
    ASSERT_OK(wake({&shard}));
  }
}

TEST_F(ReadableHostCopy, WhatTheHostWroteComesBackAndIsNeverUnchanged) {
  Shard shard = make();
  auto* block = static_cast<std::byte*>(allocate(shard, kSize));
  fill(block, 1, kSize);
  ASSERT_OK(sleep({&shard}));
  auto expected = content(1, kSize);
  const std::size_t at = kPageBytes.size() - 8; // across two pages
  for (std::size_t i = 0; i < 16; ++i) {
    (*shard.host_address(block + at))[i] = std::byte{0x42};
    reinterpret_cast<std::byte*>(expected.data())[at + i] = std::byte{0x42};
  }
  ASSERT_OK(shard.mark_host_dirty(block + at, Bytes(16)));
  auto woken = wake({&shard});
  ASSERT_OK(woken);
  EXPECT_FALSE(woken->verified) << "nobody can know what the host meant to write";
  EXPECT_TRUE(read(block, kSize) == expected);
  auto slept = sleep({&shard});
  ASSERT_OK(slept);
  EXPECT_EQ(slept->copied, kPageBytes * 2);
  EXPECT_EQ(slept->unchanged, Bytes(pages_holding(kSize)) - kPageBytes * 2);
  auto clean = wake({&shard});
  ASSERT_OK(clean);
  EXPECT_TRUE(clean->verified);
  EXPECT_TRUE(read(block, kSize) == expected);
}

TEST_F(ReadableHostCopy, PagesOfZerosAreThereToo) {
  Shard shard = make();
  auto* block = static_cast<std::byte*>(allocate(shard, kMiB * 6));
  for (int cycle = 0; cycle < 2; ++cycle) {
    fill(block, 1, kMiB * 2);
    queue_fill(block + kPageBytes.size(), kMiB * 4, 0, nullptr);
    synchronize();
    auto slept = sleep({&shard});
    ASSERT_OK(slept);
    EXPECT_EQ(slept->zero, Bytes(0));
    std::byte* zeros = *shard.host_address(block + kPageBytes.size());
    EXPECT_TRUE(std::all_of(zeros, zeros + (kMiB * 4).size(), [](std::byte byte) { return byte == std::byte{0}; }));
    std::fill_n(zeros, 100, std::byte{9});
    ASSERT_OK(shard.mark_host_dirty(block + kPageBytes.size(), Bytes(100)));
    ASSERT_OK(wake({&shard}));
    EXPECT_TRUE(is_filled(block + kPageBytes.size(), Bytes(96), 9));
    EXPECT_TRUE(holds(block, 1, kMiB * 2));
  }
}

TEST_F(ReadableHostCopy, MarksOfAWakeThatFailedStayMarks) {
  Shard shard = make();
  void* block = allocate(shard, kMiB * 2);
  fill(block, 1, kMiB * 2);
  ASSERT_OK(sleep({&shard}));
  std::fill_n(*shard.host_address(block), (kMiB * 2).size(), std::byte{3});
  ASSERT_OK(shard.mark_host_dirty(block, kMiB * 2));
  fail(CallId::cuMemcpyHtoDAsync, 1);
  EXPECT_FALSE(wake({&shard}));
  heal();
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(is_filled(block, kMiB * 2, 3));
}

TEST_F(ReadableHostCopy, WhatIsNotThereIsRefusedWithTheReason) {
  class Nothing : public ShardOwner {
  public:
    std::vector<BlockLiveRanges> live_ranges() override { return {{dead, {}}}; }
    void* dead = nullptr;
  } owner;
  Shard shard = make(Policy::kPreserve, &owner);
  auto* block = static_cast<std::byte*>(allocate(shard, kMiB * 2));
  owner.dead = allocate(shard, kMiB * 2);
  Shard packed = make_shard("packed");
  void* in_packed = allocate(packed, kMiB);
  Shard scratch = make(Policy::kDiscard);
  void* dropped = allocate(scratch, kMiB);
  EXPECT_CODE(shard.host_address(block), ErrorCode::kBusy);
  ASSERT_OK(sleep({&shard, &packed, &scratch}));
  const auto refused = [](Shard& of, const void* pointer, Bytes size) {
    EXPECT_CODE(of.mark_host_dirty(pointer, size), ErrorCode::kInvalidArgument);
    if (size == Bytes(1)) {
      EXPECT_CODE(of.host_address(pointer), ErrorCode::kInvalidArgument);
    }
  };
  refused(packed, in_packed, Bytes(1));
  refused(scratch, dropped, Bytes(1));
  refused(shard, owner.dead, Bytes(1)); // nothing of it is kept
  refused(shard, &owner, Bytes(1));     // no address of ours
  refused(shard, nullptr, Bytes(1));
  refused(shard, block, Bytes(0));
  refused(shard, block, kMiB * 2 + Bytes(1)); // beyond the block
  refused(shard, block + 8, Bytes(~std::uint64_t{0}));
  EXPECT_OK(shard.mark_host_dirty(block, kMiB * 2));
}

} // namespace
} // namespace stillwake
