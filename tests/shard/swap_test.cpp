// SPDX-License-Identifier: Apache-2.0
// Swaps that succeed: both directions, unequal and fragmented sets, policies, and the memory that they take.
#include "tests/shard/swap_fixture.h"

#include <atomic>

namespace stillwake {
namespace {

class Swaps : public SwapTest {
protected:
  void turn_often(int turns = 4) {
    for (int turn = 0; turn < turns; ++turn) {
      Side& leaving = turn % 2 == 0 ? out_ : in_;
      Side& coming = turn % 2 == 0 ? in_ : out_;
      auto swapped = swap({&*leaving.shard}, {&*coming.shard});
      ASSERT_OK(swapped);
      EXPECT_TRUE(swapped->verified);
      EXPECT_EQ(swapped->shards_moved, 2u);
      EXPECT_EQ(leaving.shard->state(), ShardState::kAsleep);
      EXPECT_EQ(coming.shard->state(), ShardState::kAwake);
      EXPECT_EQ(leaving.shard->stats().mapped, Bytes(0));
      EXPECT_TRUE(is_exact(coming)) << "turn " << turn;
      leaving.shard->core().check_invariants();
      coming.shard->core().check_invariants();
    }
  }
};

TEST_F(Swaps, EqualSetsTakeTurns) {
  set_up({kMiB * 40}, {kMiB * 40});
  turn_often();
}

TEST_F(Swaps, ASmallSetMakesRoomForALargeOneAndBack) {
  set_up({kMiB * 6}, {kMiB * 60});
  turn_often();
}

TEST_F(Swaps, FragmentedSetsTakeTurns) {
  std::vector<Bytes> many(40, kMiB + kKiB * 300);
  set_up(many, {kMiB * 9, kKiB * 5, kMiB * 17, Bytes(1000)});
  for (std::size_t i = 1; i < out_.blocks.size(); ++i) { // holes everywhere
    ASSERT_OK(out_.shard->free(out_.blocks[i].at));
    out_.blocks.erase(out_.blocks.begin() + static_cast<std::ptrdiff_t>(i));
  }
  turn_often();
}

TEST_F(Swaps, ContentThatChangesBetweenTurnsIsKept) {
  set_up({kMiB * 12}, {kMiB * 10});
  for (int turn = 0; turn < 4; ++turn) {
    Side& awake = turn % 2 == 0 ? out_ : in_;
    Side& coming = turn % 2 == 0 ? in_ : out_;
    awake.blocks[0].seed = 100 + static_cast<std::uint64_t>(turn);
    fill(awake.blocks[0].at, awake.blocks[0].seed, awake.blocks[0].size);
    ASSERT_OK(swap({&*awake.shard}, {&*coming.shard}));
    EXPECT_TRUE(is_exact(coming));
  }
}

TEST_F(Swaps, ADiscardedSetLeavesNothingAndComesBackAsZeros) {
  set_up({kMiB * 10}, {kMiB * 14}, Policy::kDiscard, Policy::kDiscard);
  auto swapped = swap({&*out_.shard}, {&*in_.shard});
  ASSERT_OK(swapped);
  EXPECT_EQ(swapped->copied, Bytes(0));
  EXPECT_EQ(host_pinned(*driver_), Bytes(0));
  EXPECT_TRUE(is_zero(in_.blocks[0].at, in_.blocks[0].size));
  fill(in_.blocks[0].at, 9, kMiB);
  ASSERT_OK(swap({&*in_.shard}, {&*out_.shard}));
  EXPECT_TRUE(is_zero(out_.blocks[0].at, out_.blocks[0].size));
}

TEST_F(Swaps, ADiscardedSetMakesRoomForAPreservedOne) {
  set_up({kMiB * 10}, {kMiB * 14}, Policy::kDiscard, Policy::kPreserve);
  ASSERT_OK(swap({&*out_.shard}, {&*in_.shard}));
  EXPECT_TRUE(is_exact(in_));
  ASSERT_OK(swap({&*in_.shard}, {&*out_.shard}));
  EXPECT_TRUE(is_zero(out_.blocks[0].at, out_.blocks[0].size));
}

TEST_F(Swaps, TheReportCountsBothDirections) {
  set_up({kMiB * 10}, {kMiB * 14});
  auto swapped = swap({&*out_.shard}, {&*in_.shard});
  ASSERT_OK(swapped);
  EXPECT_EQ(swapped->kind, Report::Kind::kSwap);
  EXPECT_EQ(swapped->live, kMiB * 24);
  EXPECT_EQ(swapped->copied, kMiB * 24);
  EXPECT_EQ(swapped->mapped, kMiB * 14);
  EXPECT_EQ(swapped->not_freed, Bytes(0));
  EXPECT_EQ(swapped->host_pinned, kMiB * 24);
}

TEST_F(Swaps, OnlyOneSideThatMovesIsASleepOrAWake) {
  set_up({kMiB * 4}, {kMiB * 6});
  ASSERT_OK(wake({&*in_.shard}));
  ASSERT_OK(swap({&*out_.shard}, {&*in_.shard})); // what comes in is awake already
  EXPECT_EQ(out_.shard->state(), ShardState::kAsleep);
  EXPECT_TRUE(is_exact(in_));
  ASSERT_OK(sleep({&*in_.shard}));
  ASSERT_OK(swap({&*out_.shard}, {&*in_.shard})); // what goes out sleeps already
  EXPECT_TRUE(is_exact(in_));
  auto nothing = swap({&*out_.shard}, {&*in_.shard});
  ASSERT_OK(nothing);
  EXPECT_TRUE(nothing->is_no_op());
}

TEST_F(Swaps, PagesOfZerosAreNoReasonToPinAnew) {
  set_up({kMiB * 20}, {kMiB * 24});
  for (Side* side : {&out_, &in_}) {
    Side::Block& block = side->blocks[0];
    if (side == &in_) {
      ASSERT_OK(swap({&*out_.shard}, {&*in_.shard}));
    }
    for (int page = 1; page < 9; page += 2) {
      queue_fill(static_cast<std::byte*>(block.at) + kPageBytes.size() * page, kPageBytes, 0, nullptr);
    }
    synchronize();
  }
  ASSERT_OK(swap({&*in_.shard}, {&*out_.shard}));
  const std::uint64_t pinned = gate().calls(CallId::cuMemHostRegister);
  ASSERT_OK(swap({&*out_.shard}, {&*in_.shard}));
  ASSERT_OK(swap({&*in_.shard}, {&*out_.shard}));
  EXPECT_EQ(gate().calls(CallId::cuMemHostRegister), pinned);
}

class SwapMemory : public SwapTest {
protected:
  void SetUp() override {
    // Sets on both sides of the margin of 512 MiB would take long to fill: zeros of a discarded set do as well.
    open(1, kMiB * 32);
    if (!emulated()) {
      GTEST_SKIP() << "needs a device whose capacity is chosen";
    }
    emulation().set_pattern(false);
  }
  void set_capacity(Bytes capacity) { emulation().set_capacity(DeviceIndex(0), capacity + taken_at_first_); }
  const Bytes taken_at_first_ = kMiB * 2; // digest scratch of the engine
};

TEST_F(SwapMemory, TheLargerSetAnd512MiBAreEnough) {
  open(1, kMiB * 640 + kMiB * 2);
  set_up({kMiB * 100}, {kMiB * 128});
  set_capacity(kMiB * 640);
  ASSERT_OK(swap({&*out_.shard}, {&*in_.shard}));
  EXPECT_TRUE(is_exact(in_));
  ASSERT_OK(swap({&*in_.shard}, {&*out_.shard}));
  EXPECT_TRUE(is_exact(out_));
}

TEST_F(SwapMemory, WithoutAnyMarginEqualSetsStillTakeTurns) {
  open(1, kMiB * 130);
  emulation().set_pattern(false);
  set_up({kMiB * 64}, {kMiB * 64});
  set_capacity(kMiB * 64);
  ASSERT_OK(swap({&*out_.shard}, {&*in_.shard}));
  EXPECT_TRUE(is_exact(in_));
  ASSERT_OK(swap({&*in_.shard}, {&*out_.shard}));
  EXPECT_TRUE(is_exact(out_));
}

TEST_F(SwapMemory, ABlockOnOneHandleThatIsLargerThanTheMarginFitsToo) {
  open(1, kMiB * 1120);
  emulation().set_pattern(false);
  in_.shard.emplace(make_shard("incoming", Policy::kDiscard));
  out_.shard.emplace(make_shard("outgoing", Policy::kDiscard));
  allocate(*in_.shard, kMiB * 520, nullptr, BlockKind::kOneHandle);
  ASSERT_OK(sleep({&*in_.shard}));
  for (int i = 0; i < 5; ++i) {
    allocate(*out_.shard, kMiB * 104);
  }
  set_capacity(kMiB * (520 + 512));
  auto swapped = swap({&*out_.shard}, {&*in_.shard});
  ASSERT_OK(swapped);
  EXPECT_EQ(in_.shard->stats().handles, 1u);
}

TEST_F(SwapMemory, NoNeighbourCanTakeWhatChangesHands) {
  open(1, kMiB * 160);
  set_up({kMiB * 128}, {kMiB * 128});
  std::atomic<bool> over{false};
  std::atomic<int> taken{0};
  std::thread neighbour([&] { // wants 40 MiB whenever they are free; the swap has no need to let them go
    while (!over) {
      auto some = Physical::create(device(), Pages(20));
      taken += some ? 1 : 0;
    }
  });
  auto swapped = swap({&*out_.shard}, {&*in_.shard});
  over = true;
  neighbour.join();
  ASSERT_OK(swapped);
  EXPECT_TRUE(is_exact(in_));
}

} // namespace
} // namespace stillwake
