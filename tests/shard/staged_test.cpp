// SPDX-License-Identifier: Apache-2.0
// The two halves of a transition: what is undone by abandon, what commit answers a second time, who may come between.
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

constexpr Bytes kSize = kMiB * 6;

class Staged : public ShardWork {
protected:
  void SetUp() override {
    ShardWork::SetUp();
    shard_.emplace(make_shard());
    block_ = allocate(*shard_, kSize);
    fill(block_, 1, kSize);
  }
  void TearDown() override {
    shard_.reset();
    ShardWork::TearDown();
  }
  std::optional<Shard> shard_;
  void* block_ = nullptr;
};

TEST_F(Staged, AnAbandonedSleepHasNotHappened) {
  const Bytes mapped = shard_->stats().mapped;
  {
    auto staged = stage_sleep({&*shard_});
    ASSERT_OK(staged);
    staged->abandon();
    EXPECT_EQ(shard_->state(), ShardState::kAwake);
    EXPECT_EQ(shard_->stats().mapped, mapped);
    EXPECT_EQ(shard_->stats().sleeps, 0u);
    EXPECT_CODE(staged->commit(), ErrorCode::kInvalidArgument);
    staged->abandon(); // twice is nothing
  }
  EXPECT_TRUE(holds(block_, 1, kSize));
  // What was saved then is not taken for what is there now.
  fill(block_, 2, kSize);
  ASSERT_OK(sleep({&*shard_}));
  ASSERT_OK(wake({&*shard_}));
  EXPECT_TRUE(holds(block_, 2, kSize));
}

TEST_F(Staged, ASleepThatIsDroppedWithoutCommitHasNotHappened) {
  void* freed = allocate(*shard_, kMiB);
  {
    auto staged = stage_sleep({&*shard_});
    ASSERT_OK(staged);
    ASSERT_OK(shard_->free(freed)); // noted
    EXPECT_EQ(shard_->stats().queued_frees, 1u);
  }
  EXPECT_EQ(shard_->state(), ShardState::kAwake);
  EXPECT_EQ(shard_->stats().queued_frees, 0u);
  EXPECT_EQ(shard_->stats().blocks, 1u);
  EXPECT_NE(allocate(*shard_, kMiB), nullptr);
  EXPECT_TRUE(holds(block_, 1, kSize));
  ASSERT_OK(sleep({&*shard_}));
  ASSERT_OK(wake({&*shard_}));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Staged, ACommittedSleepIsNotCommittedTwice) {
  auto staged = stage_sleep({&*shard_});
  ASSERT_OK(staged);
  auto report = staged->commit();
  ASSERT_OK(report);
  EXPECT_EQ(report->copied, kSize);
  EXPECT_CODE(staged->commit(), ErrorCode::kInvalidArgument);
  staged->abandon();
  EXPECT_EQ(shard_->state(), ShardState::kAsleep);
  ASSERT_OK(wake({&*shard_}));
  EXPECT_CODE(staged->commit(), ErrorCode::kInvalidArgument); // not even now
  EXPECT_EQ(shard_->state(), ShardState::kAwake);
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Staged, AnAbandonedWakeGivesTheMemoryBackAndKeepsTheHostCopy) {
  ASSERT_OK(sleep({&*shard_}));
  const Bytes free = free_memory();
  {
    auto staged = stage_wake({&*shard_});
    ASSERT_OK(staged);
    EXPECT_EQ(free_memory(), free - kSize);
    staged->abandon();
    EXPECT_EQ(shard_->state(), ShardState::kAsleep);
    EXPECT_CODE(staged->commit(), ErrorCode::kInvalidArgument);
  }
  expect_free_at_least(free);
  { auto dropped = stage_wake({&*shard_}); }
  EXPECT_EQ(shard_->state(), ShardState::kAsleep);
  EXPECT_EQ(shard_->stats().handles, 0u);
  ASSERT_OK(wake({&*shard_}));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Staged, ACommittedWakeIsNotCommittedTwice) {
  ASSERT_OK(sleep({&*shard_}));
  auto staged = stage_wake({&*shard_});
  ASSERT_OK(staged);
  auto ticket = staged->commit();
  ASSERT_OK(ticket);
  EXPECT_CODE(staged->commit(), ErrorCode::kInvalidArgument);
  staged->abandon();
  ASSERT_OK(ticket->result());
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Staged, HalvesCanBeMoved) {
  auto sleep_half = stage_sleep({&*shard_});
  ASSERT_OK(sleep_half);
  StagedSleep moved = std::move(*sleep_half);
  ASSERT_OK(moved.commit());
  std::optional<StagedWake> kept;
  {
    auto wake_half = stage_wake({&*shard_});
    ASSERT_OK(wake_half);
    kept.emplace(std::move(*wake_half));
  }
  EXPECT_EQ(shard_->state(), ShardState::kStagedWake);
  auto ticket = kept->commit();
  ASSERT_OK(ticket);
  ASSERT_OK(ticket->result());
}

TEST_F(Staged, AStreamThatCannotWaitIsRefusedAndTheHalfCanBeCommittedWithAnother) {
  OwnedStream foreign = make_stream(driver_->device_count() > 1 ? 1 : 0);
  if (driver_->device_count() < 2) {
    GTEST_SKIP() << "needs two devices";
  }
  ASSERT_OK(sleep({&*shard_}));
  auto staged = stage_wake({&*shard_});
  ASSERT_OK(staged);
  EXPECT_CODE(staged->commit({foreign.get()}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(shard_->state(), ShardState::kStagedWake);
  auto ticket = staged->commit();
  ASSERT_OK(ticket);
  ASSERT_OK(ticket->result());
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Staged, ACommitThatFailsBeforeTheFirstUnmapLeavesEverythingAwake) {
  auto staged = stage_sleep({&*shard_});
  ASSERT_OK(staged);
  fail(CallId::cuMemUnmap, 1);
  EXPECT_CODE(staged->commit(), ErrorCode::kDriverCallFailed);
  heal();
  EXPECT_EQ(shard_->state(), ShardState::kAwake);
  EXPECT_TRUE(holds(block_, 1, kSize));
  ASSERT_OK(sleep({&*shard_}));
  ASSERT_OK(wake({&*shard_}));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Staged, WhatWillNotUnmapAfterThatStaysIsListedAndFreedByTheNextSleep) {
  Shard second = make_shard("second");
  void* in_second = allocate(second, kMiB * 4);
  fill(in_second, 2, kMiB * 4);
  fail(CallId::cuMemUnmap, 2, CUDA_ERROR_UNKNOWN, true);
  auto slept = sleep({&*shard_, &second});
  heal();
  ASSERT_OK(slept);
  EXPECT_EQ(slept->not_freed, kMiB * 4);
  ASSERT_EQ(slept->leftovers.size(), second.stats().handles);
  EXPECT_EQ(slept->leftovers.front().shard, "second");
  EXPECT_EQ(slept->leftovers.front().address, in_second);
  EXPECT_NE(slept->line().find("NOT freed"), std::string::npos) << slept->line();
  EXPECT_EQ(second.state(), ShardState::kAsleep);
  EXPECT_EQ(second.stats().mapped, kMiB * 4);
  auto again = sleep({&second});
  ASSERT_OK(again);
  EXPECT_TRUE(again->is_no_op());
  EXPECT_EQ(again->freed, kMiB * 4);
  EXPECT_EQ(second.stats().mapped, Bytes(0));
  ASSERT_OK(wake({&*shard_, &second}));
  EXPECT_TRUE(holds(in_second, 2, kMiB * 4));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Staged, AWakeUsesWhatASleepCouldNotFree) {
  fail(CallId::cuMemUnmap, 2, CUDA_ERROR_UNKNOWN, true);
  Shard second = make_shard("second");
  void* in_second = allocate(second, kMiB * 4);
  fill(in_second, 2, kMiB * 4);
  ASSERT_OK(sleep({&*shard_, &second}));
  heal();
  queue_fill(in_second, kMiB * 4, 0xdd, nullptr); // whatever became of it meanwhile
  synchronize();
  auto woken = wake({&*shard_, &second});
  ASSERT_OK(woken);
  EXPECT_EQ(woken->mapped, kSize) << "the rest was there";
  EXPECT_TRUE(holds(in_second, 2, kMiB * 4));
  second.core().check_invariants();
}

} // namespace
} // namespace stillwake
