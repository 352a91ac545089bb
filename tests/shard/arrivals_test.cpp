// SPDX-License-Identifier: Apache-2.0
#include "shard/arrivals.h"

#include <gtest/gtest.h>

#include <string>

namespace stillwake {
namespace {

PageRange range(std::uint64_t first, std::uint64_t end) { return {Pages(first), Pages(end - first)}; }
MappedRun run(std::uint64_t first, std::uint64_t end, BlockKind kind = BlockKind::kShared) {
  return {range(first, end), kind};
}

/// "0:2-5 1:0-3", a one-handle run with an exclamation mark.
std::string text(const std::vector<Arrival>& arrivals) {
  std::string all;
  for (const Arrival& arrival : arrivals) {
    const PageRange& pages = arrival.run.pages;
    all += (all.empty() ? "" : " ") + std::to_string(arrival.shard) + ":" + std::to_string(pages.first.count()) + "-" +
           std::to_string(pages.end().count()) + (arrival.run.kind == BlockKind::kOneHandle ? "!" : "");
  }
  return all;
}

TEST(Arrivals, WithoutAWishTheOrderIsThatOfTheSet) {
  EXPECT_EQ(text(order_arrivals({{run(0, 4), run(6, 9)}, {}, {run(2, 3)}}, {})), "0:0-4 0:6-9 2:2-3");
}

TEST(Arrivals, WhatIsWantedComesFirstInTheOrderOfTheWishes) {
  EXPECT_EQ(text(order_arrivals({{run(0, 10)}, {run(0, 5)}}, {{1, {range(3, 5)}}, {0, {range(4, 6)}}})),
            "1:3-5 0:4-6 0:0-4 0:6-10 1:0-3");
}

TEST(Arrivals, EachPageComesOnceHoweverOftenItIsWanted) {
  EXPECT_EQ(text(order_arrivals({{run(0, 10)}}, {{0, {range(2, 5), range(4, 7)}}, {0, {range(0, 10)}}})),
            "0:2-5 0:5-7 0:0-2 0:7-10");
}

TEST(Arrivals, AWishOverSeveralRunsTakesWhatIsMissingOfEach) {
  EXPECT_EQ(text(order_arrivals({{run(0, 3), run(5, 8), run(9, 12)}}, {{0, {range(2, 10)}}})),
            "0:2-3 0:5-8 0:9-10 0:0-2 0:10-12");
}

TEST(Arrivals, ARunOnOneHandleIsNeverCut) {
  EXPECT_EQ(text(order_arrivals({{run(0, 3), run(3, 9, BlockKind::kOneHandle)}}, {{0, {range(5, 6)}}})),
            "0:3-9! 0:0-3");
}

} // namespace
} // namespace stillwake
