// SPDX-License-Identifier: Apache-2.0
// FR-C5 and FR-B4 for host memory: every driver call fails once at every place; nothing leaks, a retry works.
#include "tests/host/host_test.h"

#include <sys/resource.h>

namespace stillwake {
namespace {

class PinningFault : public HostTest, public ::testing::WithParamInterface<int> {
protected:
  void SetUp() override {
    HostTest::SetUp();
    if (!HasFatalFailure()) {
      make_arena({.budget = std::nullopt, .pinning_threads = GetParam()});
    }
  }
  void fail(std::optional<CallId> call, std::uint64_t nth, CUresult error) {
    driver_->gate().arm({Fault{call, nth, error, false}});
  }
  void disarm() { driver_->gate().arm({}); }

  static Bytes pinned_by(const Mirror& mirror) {
    Pages sum;
    for (PageRange piece : mirror.pieces()) {
      sum += piece.count;
    }
    return Bytes(sum);
  }
  void expect_sound(const Mirror& mirror) {
    mirror.check_invariants();
    EXPECT_EQ(registrations(), mirror.pieces().size());
    EXPECT_EQ(arena_->pinned(), pinned_by(mirror));
  }
};

TEST_P(PinningFault, FrC5_EachRegisterCallFailsOnce) {
  const Ranges kept = {range(0, 4)};
  const Ranges wanted = {range(0, 4), range(6, 2), range(10, 1), range(12, 130), range(200, 3)};
  auto mirror = make_mirror();
  must_arrange(*mirror, kept);
  fill(*mirror, kept[0], 2);
  const Bytes before = resident();
  for (std::uint64_t nth = 1; nth <= 4; ++nth) {
    fail(CallId::cuMemHostRegister, nth, CUDA_ERROR_OUT_OF_MEMORY);
    const auto refused = arrange(*mirror, wanted);
    EXPECT_EQ(driver_->gate().injected(), 1u);
    disarm();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfHostMemory);
    EXPECT_EQ(refused.error().driver_error, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_STREQ(refused.error().call, "cuMemHostRegister");
    EXPECT_EQ(mirror->pieces(), kept);
    EXPECT_TRUE(holds(*mirror, kept[0], 2));
    expect_sound(*mirror);
    EXPECT_LT(resident(), before + kMiB * 64);
  }
  must_arrange(*mirror, wanted);
  EXPECT_EQ(mirror->pieces(), wanted);
  EXPECT_TRUE(holds(*mirror, kept[0], 2));
}

TEST_P(PinningFault, EveryCallOfAnArrangeFailsOnce) {
  const Ranges old = {range(0, 4), range(8, 4), range(20, 2), range(30, 1)};
  const Ranges wanted = {range(0, 4), range(7, 6), range(21, 1), range(40, 2)};
  std::uint64_t places = 0;
  for (std::uint64_t nth = 1;; ++nth) {
    auto mirror = make_mirror();
    must_arrange(*mirror, old);
    fill(*mirror, range(0, 4), 3);
    fail(std::nullopt, nth, CUDA_ERROR_UNKNOWN);
    const auto arranged = arrange(*mirror, wanted);
    const bool injected = driver_->gate().injected() > 0;
    disarm();
    expect_sound(*mirror);
    EXPECT_TRUE(mirror->is_pinned(range(0, 4)));
    EXPECT_TRUE(holds(*mirror, range(0, 4), 3));
    if (!injected) {
      EXPECT_TRUE(arranged);
      break;
    }
    ++places;
    if (arranged) {
      EXPECT_EQ(mirror->pieces(), wanted); // popping a context, say, is nobody's failure
    }
    must_arrange(*mirror, wanted);
    EXPECT_EQ(mirror->pieces(), wanted);
    ASSERT_TRUE(mirror->clear());
    expect_sound(*mirror);
  }
  EXPECT_GE(places, 6u) << "three pieces unpinned, three pinned";
}

TEST_P(PinningFault, EveryCallOfAnUndoFailsOnce) {
  const Ranges wanted = {range(0, 1), range(2, 1), range(4, 1), range(6, 1)};
  for (std::uint64_t nth = 1; nth <= 3; ++nth) {
    auto mirror = make_mirror();
    driver_->gate().arm({Fault{CallId::cuMemHostRegister, 4, CUDA_ERROR_OUT_OF_MEMORY, false},
                         Fault{CallId::cuMemHostUnregister, nth, CUDA_ERROR_UNKNOWN, false}});
    EXPECT_FALSE(arrange(*mirror, wanted));
    disarm();
    expect_sound(*mirror); // what would not unpin is still a piece, and counted
    must_arrange(*mirror, wanted);
    ASSERT_TRUE(mirror->clear());
  }
}

TEST_P(PinningFault, ClearCanBeTriedAgain) {
  auto mirror = make_mirror();
  must_arrange(*mirror, {range(0, 1), range(2, 1), range(4, 1)});
  for (std::uint64_t nth = 1; nth <= 3; ++nth) {
    fail(CallId::cuMemHostUnregister, 1, CUDA_ERROR_UNKNOWN);
    const auto cleared = mirror->clear();
    disarm();
    ASSERT_FALSE(cleared);
    EXPECT_EQ(cleared.error().code, ErrorCode::kDriverCallFailed);
    expect_sound(*mirror);
  }
  EXPECT_TRUE(mirror->clear());
  EXPECT_EQ(arena_->pinned(), Bytes(0));
}

TEST_P(PinningFault, WaitingTellsTheErrorAndLaterPiecesAreNotTried) {
  auto mirror = make_mirror();
  Ranges wanted;
  for (std::uint64_t i = 0; i < 200; ++i) {
    wanted.push_back(range(i * 2, 1));
  }
  driver_->gate().arm({Fault{CallId::cuMemHostRegister, 3, CUDA_ERROR_OPERATING_SYSTEM, true}});
  const std::uint64_t before = calls(CallId::cuMemHostRegister);
  auto job = mirror->arrange(wanted, Pages(0));
  ASSERT_TRUE(job);
  const auto waited = (*job)->wait_for(Pages(398));
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, ErrorCode::kOutOfHostMemory);
  const auto finished = (*job)->finish();
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().driver_error, CUDA_ERROR_OPERATING_SYSTEM);
  EXPECT_FALSE((*job)->finish()) << "asked again it answers the same";
  EXPECT_FALSE((*job)->wait_for(Pages(0))) << "given up with the rest";
  disarm();
  EXPECT_LE(calls(CallId::cuMemHostRegister) - before, 3u + static_cast<std::uint64_t>(GetParam()));
  expect_sound(*mirror);
}

TEST_P(PinningFault, ADeadContextIsLostAndNotOutOfMemory) {
  auto mirror = make_mirror();
  fail(CallId::cuMemHostRegister, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  const auto arranged = arrange(*mirror, {range(0, 1)});
  disarm();
  ASSERT_FALSE(arranged);
  EXPECT_EQ(arranged.error().code, ErrorCode::kLost);
}

TEST_P(PinningFault, TheMessageNamesTheLimitOfLockedMemory) {
  rlimit usual = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &usual), 0);
  rlimit small = usual;
  small.rlim_cur = (kKiB * 64).count();
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  auto mirror = make_mirror();
  fail(CallId::cuMemHostRegister, 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto arranged = arrange(*mirror, {range(0, 3)});
  disarm();
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &usual), 0);
  ASSERT_FALSE(arranged);
  const std::string& text = arranged.error().message;
  EXPECT_NE(text.find(readable(Bytes(Pages(3)))), std::string::npos) << text;
  EXPECT_NE(text.find("RLIMIT_MEMLOCK is " + readable(kKiB * 64)), std::string::npos) << text;
}

TEST_P(PinningFault, ADestructorThatCannotUnpinLeaksAndSaysSo) {
  std::byte* address = nullptr;
  {
    auto mirror = make_mirror();
    must_arrange(*mirror, {range(0, 2), range(4, 1)});
    address = mirror->at(Pages(0));
    driver_->gate().arm({Fault{CallId::cuMemHostUnregister, 1, CUDA_ERROR_UNKNOWN, true}});
  }
  disarm();
  EXPECT_EQ(log().size(), 2u);
  EXPECT_EQ(registrations(), 2u);
  EXPECT_EQ(arena_->pinned(), Bytes(Pages(3)));
  EXPECT_EQ(*address, std::byte{0}); // still there: a device may use it
  {
    ContextScope scope(*device_);
    EXPECT_EQ(table().cuMemHostUnregister(address), CUDA_SUCCESS);
    EXPECT_EQ(table().cuMemHostUnregister(address + Bytes(Pages(4)).size()), CUDA_SUCCESS);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, PinningFault, ::testing::Values(1, 4));

} // namespace
} // namespace stillwake
