// SPDX-License-Identifier: Apache-2.0
#include "tests/host/host_test.h"

namespace stillwake {
namespace {

class MirrorTest : public HostTest {};

TEST_F(MirrorTest, HasAddressesAndNoMemoryAtFirst) {
  const Bytes before = resident();
  auto mirror = make_mirror(1 << 16); // 128 GiB
  EXPECT_LT(resident(), before + kMiB * 8);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mirror->at(Pages(0))) % kPageBytes.count(), 0u);
  EXPECT_EQ(mirror->at(Pages(3)) - mirror->at(Pages(0)), 3 * 2 * 1024 * 1024);
  EXPECT_TRUE(mirror->contains(mirror->at(Pages(0))));
  EXPECT_TRUE(mirror->contains(mirror->at(Pages(1 << 16)) - 1));
  EXPECT_FALSE(mirror->contains(mirror->at(Pages(1 << 16))));
  EXPECT_FALSE(mirror->contains(mirror->at(Pages(0)) - 1));
  EXPECT_EQ(mirror->pinned(), Bytes(0));
  EXPECT_EQ(registrations(), 0u);
}

TEST_F(MirrorTest, EachWantedRangeIsOnePieceAtItsOwnOffset) {
  auto mirror = make_mirror();
  must_arrange(*mirror, {range(1, 4), range(5, 1), range(100, 8)});
  EXPECT_EQ(mirror->pieces(), (Ranges{range(1, 4), range(5, 1), range(100, 8)}));
  EXPECT_EQ(registrations(), 3u);
  EXPECT_TRUE(mirror->is_pinned(range(1, 4)));
  EXPECT_TRUE(mirror->is_pinned(range(103, 5)));
  EXPECT_FALSE(mirror->is_pinned(range(4, 2))); // two pieces that touch
  EXPECT_FALSE(mirror->is_pinned(range(0, 2)));
  EXPECT_FALSE(mirror->is_pinned(range(107, 2)));
  EXPECT_FALSE(mirror->is_pinned(range(50, 1)));
  EXPECT_TRUE(is_zero(*mirror, range(100, 8)));
  fill(*mirror, range(100, 8), 1);
  EXPECT_TRUE(holds(*mirror, range(100, 8), 1));
}

TEST_F(MirrorTest, FrD1_TheSameAgainMakesNoPinningCall) {
  auto mirror = make_mirror();
  const Ranges wanted = {range(0, 16), range(32, 3)};
  must_arrange(*mirror, wanted);
  const std::uint64_t before = driver_->gate().calls();
  for (int cycle = 0; cycle < 5; ++cycle) {
    must_arrange(*mirror, wanted);
  }
  must_arrange(*mirror, {range(2, 5), range(32, 1)}, 13);
  EXPECT_EQ(driver_->gate().calls(), before);
  EXPECT_EQ(mirror->pieces(), wanted);
}

TEST_F(MirrorTest, FrD2_PinnedIsExactlyWhatIsWanted) {
  auto mirror = make_mirror();
  std::uint64_t first = 0;
  std::uint64_t sum = 0;
  Ranges wanted;
  for (std::uint64_t pages : {1, 3, 5, 7, 9, 17, 33}) { // no powers of two
    wanted.push_back(range(first, pages));
    first += pages + 1;
    sum += pages;
  }
  must_arrange(*mirror, wanted);
  EXPECT_EQ(mirror->pinned(), Bytes(Pages(sum)));
  EXPECT_EQ(arena_->pinned(), Bytes(Pages(sum)));
}

TEST_F(MirrorTest, FrD2_WhatNobodyWantsIsNeverMoreThanTheSlack) {
  auto mirror = make_mirror();
  for (std::uint64_t slack : {0, 1, 4, 16}) {
    for (std::uint64_t pages = 42; pages > 0; pages -= 3) {
      must_arrange(*mirror, {range(7, pages), range(100, pages / 2 + 1)}, slack);
      EXPECT_LE(mirror->pinned(), Bytes(Pages(pages + pages / 2 + 1 + slack)));
    }
  }
}

TEST_F(MirrorTest, AGrownPieceKeepsItsContent) {
  auto mirror = make_mirror();
  must_arrange(*mirror, {range(4, 3), range(10, 2)});
  fill(*mirror, range(4, 3), 7);
  fill(*mirror, range(10, 2), 8);
  must_arrange(*mirror, {range(2, 12)});
  EXPECT_EQ(mirror->pieces(), Ranges{range(2, 12)});
  EXPECT_EQ(registrations(), 1u);
  EXPECT_TRUE(holds(*mirror, range(4, 3), 7));
  EXPECT_TRUE(holds(*mirror, range(10, 2), 8));
  EXPECT_TRUE(is_zero(*mirror, range(7, 3)));
}

TEST_F(MirrorTest, APieceShrinksInItsMiddleAndTheRestKeepsItsContent) {
  auto mirror = make_mirror();
  must_arrange(*mirror, {range(0, 20)});
  fill(*mirror, range(0, 20), 3);
  must_arrange(*mirror, {range(0, 5), range(12, 8)});
  EXPECT_TRUE(holds(*mirror, range(0, 5), 3));
  EXPECT_TRUE(holds(*mirror, range(12, 8), 3));
  EXPECT_EQ(arena_->pinned(), Bytes(Pages(13)));
  must_arrange(*mirror, {range(0, 20)});
  EXPECT_TRUE(holds(*mirror, range(0, 5), 3));
  EXPECT_TRUE(is_zero(*mirror, range(5, 7))) << "pages that were given up come back with zeros";
}

TEST_F(MirrorTest, OverBudgetChangesNothing) {
  auto mirror = make_mirror();
  arena_->budget().set_limit(Bytes(Pages(10)));
  must_arrange(*mirror, {range(0, 6)});
  fill(*mirror, range(0, 6), 4);
  const std::uint64_t before = driver_->gate().calls();
  const auto refused = arrange(*mirror, {range(0, 11)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOverBudget);
  EXPECT_NE(refused.error().message.find(readable(Bytes(Pages(5)))), std::string::npos) << refused.error().message;
  EXPECT_EQ(driver_->gate().calls(), before);
  EXPECT_EQ(mirror->pieces(), Ranges{range(0, 6)});
  EXPECT_EQ(arena_->pinned(), Bytes(Pages(6)));
  EXPECT_TRUE(holds(*mirror, range(0, 6), 4));
  mirror->check_invariants();
  must_arrange(*mirror, {range(0, 10)});
}

TEST_F(MirrorTest, WhatIsGivenUpMakesRoomForWhatIsNew) {
  auto mirror = make_mirror();
  arena_->budget().set_limit(Bytes(Pages(10)));
  must_arrange(*mirror, {range(0, 10)});
  must_arrange(*mirror, {range(50, 10)});
  EXPECT_EQ(mirror->pieces(), Ranges{range(50, 10)});
}

TEST_F(MirrorTest, AddressesStayOverAllCycles) {
  auto mirror = make_mirror();
  std::byte* const first = mirror->at(Pages(0));
  for (std::uint64_t cycle = 0; cycle < 8; ++cycle) {
    must_arrange(*mirror, {range(cycle, 3), range(40, 1 + cycle)});
    EXPECT_EQ(mirror->at(Pages(0)), first);
    ASSERT_TRUE(mirror->clear());
    EXPECT_EQ(mirror->pieces(), Ranges{});
    EXPECT_EQ(arena_->pinned(), Bytes(0));
    EXPECT_EQ(registrations(), 0u);
  }
}

TEST_F(MirrorTest, TheDestructorUnpinsAndGivesTheBudgetBack) {
  must_arrange(*make_mirror(), {range(0, 4), range(9, 1)});
  EXPECT_EQ(registrations(), 0u);
  EXPECT_EQ(arena_->pinned(), Bytes(0));
}

using MirrorDeathTest = MirrorTest;

TEST_F(MirrorDeathTest, APieceBeyondTheEndIsOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe"); // in a forked child a mirror is inert
  auto mirror = make_mirror(16);
  EXPECT_DEATH((void)arrange(*mirror, {range(10, 7)}), "invariant broken");
}

} // namespace
} // namespace stillwake
