// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/piece_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace stillwake {
namespace {

using Ranges = std::vector<PageRange>;

PageRange range(std::uint64_t first, std::uint64_t count) { return {Pages(first), Pages(count)}; }

struct Case {
  const char* name;
  Ranges pieces;
  Ranges wanted;
  std::uint64_t slack;
  Ranges drop;
  Ranges punch;
  Ranges add;
  std::uint64_t after;
};

class PiecePlanCases : public ::testing::TestWithParam<Case> {};

TEST_P(PiecePlanCases, IsAsWrittenByHand) {
  const Case& c = GetParam();
  const PiecePlan plan = plan_pieces(c.pieces, c.wanted, Pages(c.slack));
  EXPECT_EQ(plan.drop, c.drop);
  EXPECT_EQ(plan.punch, c.punch);
  const auto holds = [](const Ranges& ranges, Pages page) {
    return std::any_of(ranges.begin(), ranges.end(), [page](PageRange range) { return range.contains(page); });
  };
  Pages fresh;
  for (PageRange piece : plan.add) {
    for (Pages page = piece.first; page < piece.end(); page += Pages(1)) {
      fresh += Pages(holds(plan.drop, page) && !holds(plan.punch, page) ? 0 : 1);
    }
  }
  EXPECT_EQ(plan.fresh(), fresh);
  EXPECT_EQ(plan.add, c.add);
  EXPECT_EQ(plan.pages_after, Pages(c.after));
}

INSTANTIATE_TEST_SUITE_P(
    All, PiecePlanCases,
    ::testing::Values(
        Case{"Nothing", {}, {}, 0, {}, {}, {}, 0},
        Case{"First", {}, {range(0, 4), range(8, 2)}, 0, {}, {}, {range(0, 4), range(8, 2)}, 6},
        Case{"Same", {range(0, 4), range(8, 2)}, {range(0, 4), range(8, 2)}, 0, {}, {}, {}, 6},
        Case{"GrowsAtItsEnd", {range(0, 4)}, {range(0, 6)}, 0, {range(0, 4)}, {}, {range(0, 6)}, 6},
        Case{"GrowsAtItsFront", {range(4, 4)}, {range(2, 6)}, 0, {range(4, 4)}, {}, {range(2, 6)}, 6},
        Case{"TwoBecomeOne",
             {range(0, 2), range(4, 2)},
             {range(0, 6)},
             0,
             {range(0, 2), range(4, 2)},
             {},
             {range(0, 6)},
             6},
        Case{"TouchingPiecesMerge",
             {range(0, 2), range(2, 2)},
             {range(0, 4)},
             0,
             {range(0, 2), range(2, 2)},
             {},
             {range(0, 4)},
             4},
        Case{"OneServesTwoThatTouch", {range(0, 4)}, {range(0, 2), range(2, 2)}, 0, {}, {}, {}, 4},
        Case{"WithinSlack", {range(0, 10)}, {range(1, 8)}, 2, {}, {}, {}, 10},
        Case{"BeyondSlackIsCutExactly",
             {range(0, 10)},
             {range(1, 7)},
             2,
             {range(0, 10)},
             {range(0, 1), range(8, 2)},
             {range(1, 7)},
             7},
        Case{"HoleInTheMiddle",
             {range(0, 10)},
             {range(0, 3), range(6, 4)},
             2,
             {range(0, 10)},
             {range(3, 3)},
             {range(0, 3), range(6, 4)},
             7},
        Case{"UnwantedPieceGoesFirst",
             {range(0, 10), range(20, 3)},
             {range(0, 9)},
             1,
             {range(20, 3)},
             {range(20, 3)},
             {},
             10},
        Case{"MostUnwantedIsCutFirst",
             {range(0, 10), range(20, 10)},
             {range(0, 9), range(20, 4)},
             1,
             {range(20, 10)},
             {range(24, 6)},
             {range(20, 4)},
             14},
        Case{"OverlapOfOneCutsItsNeighboursWish",
             {range(0, 10)},
             {range(0, 2), range(8, 4)},
             100,
             {range(0, 10)},
             {range(2, 6)},
             {range(0, 2), range(8, 4)},
             6},
        Case{"OneOverTwoWithARestOnBothSides",
             {range(0, 4), range(6, 4)},
             {range(2, 6)},
             0,
             {range(0, 4), range(6, 4)},
             {range(0, 2), range(8, 2)},
             {range(2, 6)},
             6},
        Case{"All", {range(3, 4), range(9, 1)}, {}, 0, {range(3, 4), range(9, 1)}, {range(3, 4), range(9, 1)}, {}, 0}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(PiecePlanDeathTest, RefusesRangesOutOfOrder) {
  const Ranges overlapping = {range(0, 4), range(3, 2)};
  const Ranges empty = {range(0, 0)};
  EXPECT_DEATH(plan_pieces({}, overlapping, Pages(0)), "4 against 3");
  EXPECT_DEATH(plan_pieces({}, empty, Pages(0)), "0 against 0");
}

} // namespace
} // namespace stillwake
