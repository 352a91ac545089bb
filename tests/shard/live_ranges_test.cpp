// SPDX-License-Identifier: Apache-2.0
// What an owner says is live within a block decides what travels: pages with no live byte are neither copied nor
// backed, and many small tensors travel as one large one does.
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

class TellingOwner : public ShardOwner {
public:
  std::vector<BlockLiveRanges> live_ranges() override { return told; }
  std::vector<BlockLiveRanges> told;
};

class LiveRanges : public ShardWork {
protected:
  Shard make(const std::string& name = "segments") {
    ShardOptions options;
    options.name = name;
    options.owner = &owner_;
    return make_shard(options);
  }
  static void* page_of(void* block, int page) { return static_cast<std::byte*>(block) + kPageBytes.size() * page; }

  TellingOwner owner_;
};

TEST_F(LiveRanges, FR_D4_HalfTheTensorsFreedMeansThatHalfThePagesTravel) {
  Shard shard = make();
  constexpr int kPages = 16;
  void* segment = allocate(shard, kPageBytes * kPages); // a segment of 1 MiB tensors, two a page
  fill(segment, 1, kPageBytes * kPages);
  const std::vector<std::uint64_t> whole = content(1, kPageBytes * kPages);
  BlockLiveRanges live{segment, {}};
  for (int page = 0; page < kPages; page += 2) { // of every other page one tensor
    live.ranges.push_back({kPageBytes * page + kMiB, kMiB});
  }
  std::reverse(live.ranges.begin(), live.ranges.end()); // told in any order
  owner_.told = {live};
  auto slept = sleep({&shard});
  ASSERT_OK(slept);
  EXPECT_EQ(slept->live, kPageBytes * (kPages / 2));
  EXPECT_EQ(slept->copied, kPageBytes * (kPages / 2));
  EXPECT_EQ(slept->freed, kPageBytes * kPages);
  EXPECT_LE(slept->host_pinned, kPageBytes * (kPages / 2 + 1));
  auto woken = wake({&shard});
  ASSERT_OK(woken);
  EXPECT_EQ(woken->mapped, kPageBytes * kPages) << "a block comes back whole: its owner reuses dead ranges";
  EXPECT_EQ(woken->copied, slept->copied);
  const auto found = read(segment, kPageBytes * kPages);
  for (const LiveRange& range : live.ranges) {
    const auto from = static_cast<std::ptrdiff_t>(range.offset.count() / 8);
    EXPECT_TRUE(std::equal(found.begin() + from, found.begin() + from + (kMiB / 8).size(), whole.begin() + from));
  }
  for (int page = 1; page < kPages; page += 2) {
    EXPECT_TRUE(is_zero(page_of(segment, page), kPageBytes)) << page;
  }
}

TEST_F(LiveRanges, PagesThatDieAndLiveAgainAreExactInEveryCycle) {
  Shard shard = make();
  void* segment = allocate(shard, kPageBytes * 4);
  for (int cycle = 0; cycle < 6; ++cycle) {
    for (int page = 0; page < 4; ++page) {
      fill(page_of(segment, page), page, kPageBytes); // the same content again: unchanged, where a backing is there
    }
    BlockLiveRanges live{segment, {}};
    for (int page = 0; page < 4; ++page) {
      if ((cycle >> page) % 2 == 0) {
        live.ranges.push_back({kPageBytes * page, kPageBytes});
      }
    }
    owner_.told = {live};
    auto slept = sleep({&shard});
    ASSERT_OK(slept);
    EXPECT_EQ(slept->copied + slept->unchanged, kPageBytes * live.ranges.size());
    ASSERT_OK(wake({&shard}));
    for (int page = 0; page < 4; ++page) {
      EXPECT_TRUE((cycle >> page) % 2 == 0 ? holds(page_of(segment, page), page, kPageBytes)
                                           : is_zero(page_of(segment, page), kPageBytes))
          << "cycle " << cycle << ", page " << page;
    }
  }
}

TEST_F(LiveRanges, ABlockInWhichNothingIsLiveIsNotKept) {
  Shard shard = make();
  void* dead = allocate(shard, kMiB * 8);
  void* live = allocate(shard, kMiB * 2);
  fill(dead, 1, kMiB * 8);
  fill(live, 2, kMiB * 2);
  owner_.told = {{dead, {}}};
  auto slept = sleep({&shard});
  ASSERT_OK(slept);
  EXPECT_EQ(slept->copied, kMiB * 2);
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(live, 2, kMiB * 2));
  EXPECT_TRUE(is_zero(dead, kMiB * 8));
}

TEST_F(LiveRanges, ABlockThatIsToldTwiceKeepsBothParts) {
  Shard shard = make();
  void* segment = allocate(shard, kPageBytes * 3);
  fill(segment, 1, kPageBytes * 3);
  owner_.told = {{segment, {{kPageBytes * 2, kPageBytes}}}, {segment, {{Bytes(0), kPageBytes}}}};
  auto slept = sleep({&shard});
  ASSERT_OK(slept);
  EXPECT_EQ(slept->live, kPageBytes * 2);
  ASSERT_OK(wake({&shard}));
  const auto whole = content(1, kPageBytes * 3);
  const auto found = read(segment, kPageBytes * 3);
  const auto page = static_cast<std::ptrdiff_t>(kPageBytes.count() / 8);
  EXPECT_TRUE(std::equal(whole.begin(), whole.begin() + page, found.begin()));
  EXPECT_TRUE(std::equal(whole.begin() + 2 * page, whole.end(), found.begin() + 2 * page));
}

TEST_F(LiveRanges, WhatAnOwnerCannotMeanIsRefusedAndEverythingIsAwake) {
  Shard shard = make();
  auto* block = static_cast<std::byte*>(allocate(shard, kMiB * 2));
  fill(block, 1, kMiB * 2);
  const std::vector<BlockLiveRanges> wrong[] = {
      {{block, {{Bytes(0), kMiB * 2 + Bytes(1)}}}},           // longer than its block
      {{block, {{kMiB * 3, Bytes(1)}}}},                      // behind it
      {{block, {{kMiB, Bytes(~std::uint64_t{0})}}}},          // around the end of all numbers
      {{block + 512, {{Bytes(0), Bytes(8)}}}},                // not where the block starts
      {{block + (kMiB * 64).size(), {{Bytes(0), Bytes(8)}}}}, // no block at all
      {{nullptr, {{Bytes(0), Bytes(8)}}}},                    // none of any shard
  };
  for (const auto& told : wrong) {
    owner_.told = told;
    EXPECT_CODE(sleep({&shard}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(shard.state(), ShardState::kAwake);
    EXPECT_TRUE(holds(block, 1, kMiB * 2));
    EXPECT_OK(shard.free(allocate(shard, kKiB), nullptr));
  }
  owner_.told = {{&owner_, {{Bytes(0), Bytes(8)}}}}; // of another shard, for all that is known
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 1, kMiB * 2));
}

TEST_F(LiveRanges, FR_D5_510SmallTensorsMoveAsOneLargeOneDoes) {
  constexpr std::uint64_t kTensors = 510;
  constexpr Bytes kEach = kKiB * 32;
  Shard many = make_shard("many");
  Shard one = make_shard("one");
  std::vector<void*> blocks;
  for (std::uint64_t i = 0; i < kTensors; ++i) {
    blocks.push_back(allocate(many, kEach));
    fill(blocks.back(), i, kEach);
  }
  void* large = allocate(one, kEach * kTensors);
  fill(large, 1, kEach * kTensors);
  const auto copies_in = [&] { return gate().calls(CallId::cuMemcpyHtoDAsync); };
  const auto move = [&](Shard& shard, Report& slept, std::uint64_t& in) {
    auto asleep = sleep({&shard});
    ASSERT_OK(asleep);
    slept = *asleep;
    const std::uint64_t before = copies_in();
    ASSERT_OK(wake({&shard}));
    in = copies_in() - before;
  };
  Report slept_many, slept_one;
  std::uint64_t in_many = 0, in_one = 0;
  move(many, slept_many, in_many);
  move(one, slept_one, in_one);
  EXPECT_LE(slept_many.copies, slept_one.copies + 1);
  EXPECT_LE(slept_many.copied, slept_one.copied + kPageBytes);
  EXPECT_GE(slept_many.copied, kEach * kTensors);
  EXPECT_LE(in_many, in_one + 1);
  for (std::uint64_t i = 0; i < kTensors; ++i) {
    EXPECT_TRUE(holds(blocks[i], i, kEach)) << i;
  }
}

} // namespace
} // namespace stillwake
