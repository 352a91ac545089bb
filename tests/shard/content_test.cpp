// SPDX-License-Identifier: Apache-2.0
// What comes back: every byte, in its own shard, zeros where the content was not owed, and as much as was saved.
#include "tests/shard/cycles.h"

#include <map>
#include <random>
#include <set>

namespace stillwake {
namespace {

class Content : public ShardWork {};

TEST_F(Content, FR_E1_EveryByteIsEqualOver100CyclesWithSideStreamsWritingBetween) {
  Shard shard = make_shard();
  std::vector<OwnedStream> streams;
  streams.reserve(3);
  for (int i = 0; i < 3; ++i) {
    streams.push_back(make_stream());
  }
  // Odd sizes: views, bf16 and fp8 tensors end anywhere. Each byte's value is kept beside, on the host.
  const std::vector<std::uint64_t> sizes = {1, 3, 511, 513, 4097, 65537, (2u << 20) - 1, (2u << 20) + 1, 3u << 20};
  std::vector<std::byte*> blocks;
  std::vector<std::vector<unsigned char>> expected;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    blocks.push_back(static_cast<std::byte*>(allocate(shard, Bytes(sizes[i]), streams[i % 3].get())));
    expected.emplace_back(sizes[i], 0);
    queue_fill(blocks[i], Bytes(sizes[i]), 0, streams[i % 3].get());
  }
  std::mt19937 random(7);
  for (int cycle = 0; cycle < 100; ++cycle) {
    for (int write = 0; write < 6; ++write) {
      const std::size_t i = random() % sizes.size();
      const std::uint64_t from = random() % sizes[i];
      const std::uint64_t count = std::min<std::uint64_t>(1 + random() % 70000, sizes[i] - from);
      const auto value = static_cast<unsigned char>(random());
      queue_fill(blocks[i] + from, Bytes(count), value, streams[i % 3].get());
      std::fill_n(expected[i].begin() + static_cast<std::ptrdiff_t>(from), count, value);
    }
    ASSERT_OK(sleep({&shard}));
    auto woken = wake({&shard});
    ASSERT_OK(woken);
    ASSERT_TRUE(woken->verified);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::vector<unsigned char> found(sizes[i]);
      ContextScope scope(device());
      ASSERT_EQ(table().cuMemcpyDtoHAsync(found.data(), DeviceAddress(blocks[i]).value(), sizes[i], nullptr),
                CUDA_SUCCESS);
      ASSERT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
      ASSERT_TRUE(found == expected[i]) << "block " << i << ", cycle " << cycle;
    }
  }
}

TEST_F(Content, FR_E2_TwoShardsNeverShareAPageAndNeverServeEachOthersBlocks) {
  Shard one = make_shard("one");
  Shard two = make_shard("two");
  std::set<std::uint64_t> pages[2];
  std::set<void*> freed;
  for (int i = 0; i < 200; ++i) {
    const int side = i % 2;
    Shard& shard = side == 0 ? one : two;
    void* block = allocate(shard, kKiB * (1 + i % 60));
    EXPECT_EQ(freed.count(block), 0u) << "a block that the other shard freed";
    EXPECT_TRUE(shard.contains(block));
    EXPECT_FALSE((side == 0 ? two : one).contains(block));
    pages[side].insert(DeviceAddress(block).value() / kPageBytes.count());
    if (i % 5 == 0 && side == 0) {
      ASSERT_OK(one.free(block, nullptr));
    }
  }
  // Only `one` freed: its blocks may come again from itself alone.
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(one.contains(allocate(two, kKiB)));
  }
  for (std::uint64_t page : pages[0]) {
    EXPECT_EQ(pages[1].count(page), 0u);
  }
  EXPECT_CODE(two.free(allocate(one, kKiB)), ErrorCode::kInvalidArgument);
}

TEST_F(Content, FR_E3_DiscardComesBackAsZerosAlways) {
  Shard shard = make_shard("scratch", Policy::kDiscard);
  void* block = allocate(shard, kMiB * 7);
  void* small = allocate(shard, kKiB);
  for (int cycle = 0; cycle < 4; ++cycle) {
    fill(block, cycle, kMiB * 7);
    fill(small, cycle, kKiB);
    auto slept = sleep({&shard});
    ASSERT_OK(slept);
    EXPECT_EQ(slept->copied, Bytes(0));
    EXPECT_EQ(slept->discarded, slept->live);
    EXPECT_EQ(shard.stats().host_pinned, Bytes(0));
    if (cycle == 2) { // a wake that fails in between changes nothing about it
      fail(CallId::cuMemsetD8Async, 1);
      EXPECT_FALSE(wake({&shard}));
      heal();
    }
    ASSERT_OK(wake({&shard}));
    EXPECT_TRUE(is_zero(block, kMiB * 7)) << cycle;
    EXPECT_TRUE(is_zero(small, kKiB)) << cycle;
  }
}

TEST_F(Content, FR_E3_WhatNobodyToldAboutIsPreserved) {
  class KnowsOne : public ShardOwner {
  public:
    std::vector<BlockLiveRanges> live_ranges() override { return {{known, {{Bytes(0), kMiB * 2}}}}; }
    void* known = nullptr;
  } owner;
  ShardOptions options;
  options.name = "partly known";
  options.owner = &owner;
  Shard shard = make_shard(options);
  owner.known = allocate(shard, kMiB * 4);
  void* unknown = allocate(shard, kMiB * 6);
  fill(owner.known, 1, kMiB * 4);
  fill(unknown, 2, kMiB * 6);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(unknown, 2, kMiB * 6));
  EXPECT_TRUE(holds(owner.known, 1, kMiB * 2));
}

TEST_F(Content, FR_E4_AWakeMapsAndRestoresWhatTheSleepSaved) {
  Shard shard = make_shard();
  Shard scratch = make_shard("scratch", Policy::kDiscard);
  fill(allocate(shard, kMiB * 10), 1, kMiB * 10);
  queue_fill(allocate(shard, kMiB * 4), kMiB * 4, 0, nullptr); // zeros
  allocate(scratch, kMiB * 6);
  synchronize();
  Bytes kept; // copied by any of the sleeps so far and still what the device had
  for (int cycle = 0; cycle < 3; ++cycle) {
    const Bytes mapped = shard.stats().mapped + scratch.stats().mapped;
    auto slept = sleep({&shard, &scratch});
    ASSERT_OK(slept);
    EXPECT_EQ(slept->live, slept->copied + slept->unchanged + slept->zero + slept->discarded);
    EXPECT_EQ(slept->freed, mapped);
    EXPECT_EQ(slept->copied, cycle == 0 ? kMiB * 10 : Bytes(0));
    auto woken = wake({&shard, &scratch});
    ASSERT_OK(woken);
    EXPECT_EQ(woken->mapped, slept->live);
    EXPECT_EQ(woken->live, slept->live);
    EXPECT_EQ(woken->copied, kMiB * 10);
  }
}

TEST_F(Content, FR_E4_AWakeThatWouldRestoreLessThanWasSavedIsAnError) {
  Shard shard = make_shard();
  allocate(shard, kMiB * 10);
  fill(allocate(shard, kMiB * 4), 1, kMiB * 4);
  ASSERT_OK(sleep({&shard}));
  PageEntry& entry = shard.core().pages()[Pages(5)];
  const PageEntry kept = std::exchange(entry, PageEntry()); // as a fault of ours would
  auto woken = wake({&shard});
  EXPECT_CODE(woken, ErrorCode::kCorrupted);
  EXPECT_NE(woken.error().message.find("7 pages, and 6"), std::string::npos) << woken.error().message;
  EXPECT_EQ(shard.state(), ShardState::kAsleep);
  entry = kept;
  ASSERT_OK(wake({&shard}));
}

TEST_F(Cycles, FR_B1_CyclesWithChurnLeaveNoResidue) { run(); }

} // namespace
} // namespace stillwake
