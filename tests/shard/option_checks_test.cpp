// SPDX-License-Identifier: Apache-2.0
// Options that cannot be are refused with their value before anything has changed, by every entry that takes them.
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

class OptionChecks : public ShardWork {
protected:
  void SetUp() override {
    ShardWork::SetUp();
    asleep_.emplace(make_shard("asleep"));
    awake_.emplace(make_shard("awake"));
    block_ = allocate(*asleep_, kMiB * 4);
    other_ = allocate(*awake_, kMiB * 4);
    fill(block_, 1, kMiB * 4);
    fill(other_, 2, kMiB * 4);
    ASSERT_OK(sleep({&*asleep_}));
  }
  void TearDown() override {
    asleep_.reset();
    awake_.reset();
    ShardWork::TearDown();
  }

  template <class Answer> void expect_refused(const Answer& answer, const std::string& text) {
    EXPECT_CODE(answer, ErrorCode::kInvalidArgument);
    EXPECT_NE(answer.error().message.find(text), std::string::npos) << answer.error().message;
    EXPECT_EQ(asleep_->state(), ShardState::kAsleep);
    EXPECT_EQ(awake_->state(), ShardState::kAwake);
    EXPECT_EQ(awake_->stats().host_pinned, Bytes(0)) << "nothing was pinned for a sleep that cannot be";
  }
  void expect_wakes_refused(const WakeOptions& options, const std::string& text) {
    expect_refused(wake({&*asleep_}, options), text);
    expect_refused(wake(*driver_, options), text);
    expect_refused(wake({&*asleep_}, std::vector<Stream>{nullptr}, options), text);
    expect_refused(stage_wake({&*asleep_}, options), text);
    expect_refused(swap({&*awake_}, {&*asleep_}, {}, options), text);
  }

  std::optional<Shard> asleep_;
  std::optional<Shard> awake_;
  void* block_ = nullptr;
  void* other_ = nullptr;
};

TEST_F(OptionChecks, TimeoutsBelowZeroAreRefused) {
  for (const auto& [timeout, text] : {std::pair(Duration(-1), "is -1 ns"), {Duration::min(), "-9223372036854775808"}}) {
    SleepOptions sleeping;
    sleeping.timeout = timeout;
    expect_refused(sleep({&*awake_}, sleeping), text);
    expect_refused(sleep(*driver_, sleeping), text);
    expect_refused(stage_sleep({&*awake_}, sleeping), text);
    expect_refused(swap({&*awake_}, {&*asleep_}, sleeping), text);
    WakeOptions waking;
    waking.timeout = timeout;
    expect_wakes_refused(waking, text);
  }
}

TEST_F(OptionChecks, WithoutAnyShardTheyAreRefusedAllTheSame) {
  asleep_.reset();
  awake_.reset();
  SleepOptions sleeping;
  sleeping.timeout = Duration(-1);
  EXPECT_CODE(sleep(*driver_, sleeping), ErrorCode::kInvalidArgument);
  WakeOptions waking;
  waking.chunk = Bytes(1);
  EXPECT_CODE(wake(*driver_, waking), ErrorCode::kInvalidArgument);
  EXPECT_OK(wake(*driver_));
}

TEST_F(OptionChecks, RangesWantedFirstThatDoNotLieInTheSetAreRefused) {
  int local = 0;
  const auto* block = static_cast<const std::byte*>(block_);
  const Bytes to_the_end = asleep_->stats().reserved_addresses;
  ASSERT_TRUE(asleep_->contains(block)); // the first block of the reservation
  ASSERT_FALSE(asleep_->contains(block + to_the_end.size()));
  const WakeFirst wrong[] = {{nullptr, Bytes(1)},
                             {&local, Bytes(1)},
                             {block, Bytes(0)},
                             {block, to_the_end + Bytes(1)},
                             {block + 512, to_the_end},
                             {block + 512, Bytes(~std::uint64_t{0})}, // wraps
                             {block + to_the_end.size(), Bytes(1)}};
  for (const WakeFirst& first : wrong) {
    WakeOptions options;
    options.first = {{block, Bytes(1)}, first};
    expect_wakes_refused(options, "the range of " + std::to_string(first.size.count()) + " bytes at " +
                                      hexadecimal(first.pointer) + " that is wanted first");
  }
  WakeOptions options;
  options.first = {{other_, kMiB}};
  expect_refused(wake({&*asleep_}, options), hexadecimal(other_)); // in a shard, but not of this set
}

TEST_F(OptionChecks, AWayToPrepareThatIsNoneIsRefused) {
  expect_refused(awake_->prepare(static_cast<Shard::Prepare>(5)), "preparing in way 5");
}

TEST_F(OptionChecks, AStreamThatIsNoneIsRefusedThoughAllIsAwake) {
  if (!emulated()) {
    GTEST_SKIP() << "a GPU's driver may crash on what is no stream";
  }
  const std::vector<Stream> none = {reinterpret_cast<Stream>(0x99)};
  for (const ShardSet& set : {ShardSet{&*awake_}, ShardSet{&*asleep_}, ShardSet{&*awake_, &*asleep_}}) {
    expect_refused(wake(set, none), "waking: 0x99 is no stream");
  }
  EXPECT_OK(wake({&*awake_}, std::vector<Stream>{nullptr}));
}

TEST_F(OptionChecks, RangesOfEveryShardOfTheSetAreRight) {
  WakeOptions options;
  options.first = {{other_, kMiB}, {block_, kMiB * 4}, {block_, asleep_->stats().reserved_addresses}};
  ASSERT_OK(wake({&*asleep_, &*awake_}, options));
  EXPECT_TRUE(holds(block_, 1, kMiB * 4));
  EXPECT_TRUE(holds(other_, 2, kMiB * 4));
}

} // namespace
} // namespace stillwake
