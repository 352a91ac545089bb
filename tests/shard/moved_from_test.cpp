// SPDX-License-Identifier: Apache-2.0
// What was moved from has one defined answer to each call.
#include "tests/shard/shard_fixture.h"

namespace stillwake {
namespace {

class MovedFrom : public ShardTest {
protected:
  template <class Answer> void expect_refused(const Answer& answer, const std::string& type) {
    EXPECT_CODE(answer, ErrorCode::kInvalidArgument);
    EXPECT_NE(answer.error().message.find("this " + type + " was moved from"), std::string::npos)
        << answer.error().message;
  }
};

TEST_F(MovedFrom, AShardAnswersEveryResultWithAnError) {
  Shard from = make_shard();
  void* block = allocate(from, kMiB);
  const Shard shard = std::move(from);
  EXPECT_TRUE(shard.is_open());
  EXPECT_FALSE(from.is_open()); // NOLINT(bugprone-use-after-move)
  expect_refused(from.allocate(kMiB), "Shard");
  expect_refused(from.free(block), "Shard");
  expect_refused(from.free(block, nullptr), "Shard");
  expect_refused(from.prepare(), "Shard");
  expect_refused(from.trim(), "Shard");
  expect_refused(from.host_address(block), "Shard");
  expect_refused(from.mark_host_dirty(block, kMiB), "Shard");
  expect_refused(sleep({&from}), "Shard");
  expect_refused(wake({&from}), "Shard");
  expect_refused(wake({&from}, std::vector<Stream>()), "Shard");
  expect_refused(stage_sleep({&from}), "Shard");
  expect_refused(stage_wake({&from}), "Shard");
  expect_refused(swap({&from}, {&from}), "Shard");
  EXPECT_EQ(shard.stats().blocks, 1u);
}

TEST_F(MovedFrom, AShardMayBeAssignedTo) {
  Shard from = make_shard();
  Shard shard = std::move(from);
  from = make_shard("another");
  EXPECT_EQ(from.name(), "another");
  EXPECT_OK(from.allocate(kMiB));
  EXPECT_OK(shard.allocate(kMiB));
}

TEST_F(MovedFrom, TicketsAndHalvesAnswerWithAnError) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB);
  auto staged = stage_sleep({&shard});
  ASSERT_OK(staged);
  StagedSleep sleeping = std::move(*staged);
  expect_refused(staged->commit(), "StagedSleep"); // NOLINT(bugprone-use-after-move)
  staged->abandon();                               // nothing
  EXPECT_EQ(shard.state(), ShardState::kStagedSleep);
  ASSERT_OK(sleeping.commit());

  auto mapped = stage_wake({&shard});
  ASSERT_OK(mapped);
  StagedWake waking = std::move(*mapped);
  expect_refused(mapped->commit(), "StagedWake"); // NOLINT(bugprone-use-after-move)
  mapped->abandon();
  EXPECT_EQ(shard.state(), ShardState::kStagedWake);
  auto ticket = waking.commit();
  ASSERT_OK(ticket);

  Ticket moved = std::move(*ticket);
  expect_refused(ticket->wait(nullptr), "Ticket"); // NOLINT(bugprone-use-after-move)
  expect_refused(ticket->wait(nullptr, block, kMiB), "Ticket");
  expect_refused(ticket->result(), "Ticket");
  EXPECT_OK(moved.result());
}

TEST_F(MovedFrom, NothingIsDoneOnADriver) {
  const Driver driver = std::move(*driver_);
  ShardOptions options;
  options.name = "nowhere";
  expect_refused(Shard::create(*driver_, options), "Driver"); // NOLINT(bugprone-use-after-move)
  expect_refused(sleep(*driver_), "Driver");
  expect_refused(wake(*driver_), "Driver");
  expect_refused(set_pinning_threads(*driver_, 1), "Driver");
  driver_.reset();
}

class MovedFromDeathTest : public MovedFrom {
protected:
  // In a process of its own: after a fork every call would answer that it is one.
  MovedFromDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(MovedFromDeathTest, CallsThatCannotFailEndTheProcessWithASentence) {
  Shard from = make_shard();
  const Shard shard = std::move(from);
  const char* sentence = "stillwake: this Shard was moved from";
  EXPECT_DEATH((void)from.name(), sentence); // NOLINT(bugprone-use-after-move)
  EXPECT_DEATH((void)from.device(), sentence);
  EXPECT_DEATH((void)from.policy(), sentence);
  EXPECT_DEATH((void)from.state(), sentence);
  EXPECT_DEATH((void)from.stats(), sentence);
  EXPECT_DEATH((void)from.contains(nullptr), sentence);
  EXPECT_DEATH((void)from.core(), sentence);
  Driver driver = std::move(*driver_);
  EXPECT_DEATH(set_host_budget(*driver_, kMiB), "stillwake: this Driver was moved from");
  *driver_ = std::move(driver);
}

} // namespace
} // namespace stillwake
