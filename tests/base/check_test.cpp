// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

namespace stillwake {
namespace {

enum class Colour { kRed = 3, kBlue = 8 };

TEST(CheckDeathTest, ShowsConditionAndBothValues) {
  const int left = 41;
  const int right = 42;
  EXPECT_DEATH(STILLWAKE_CHECK_EQ(left, right), "check_test.cpp:.*invariant broken: left == right \\(41 against 42\\)");
  EXPECT_DEATH(STILLWAKE_CHECK_NE(left, left), "left != left \\(41 against 41\\)");
  EXPECT_DEATH(STILLWAKE_CHECK_LT(right, left), "right < left \\(42 against 41\\)");
  EXPECT_DEATH(STILLWAKE_CHECK_LE(right, left), "right <= left \\(42 against 41\\)");
}

TEST(CheckDeathTest, PrintsUnitsEnumsPointersAndText) {
  EXPECT_DEATH(STILLWAKE_CHECK_EQ(Bytes(10), Bytes(20)), "\\(10 against 20\\)");
  EXPECT_DEATH(STILLWAKE_CHECK_EQ(Pages(3), Pages(4)), "\\(3 against 4\\)");
  EXPECT_DEATH(STILLWAKE_CHECK_EQ(DeviceAddress(4096), DeviceAddress(8192)), "\\(0x1000 against 0x2000\\)");
  EXPECT_DEATH(STILLWAKE_CHECK_EQ(Colour::kRed, Colour::kBlue), "\\(3 against 8\\)");
  EXPECT_DEATH(STILLWAKE_CHECK_EQ(reinterpret_cast<void*>(16), static_cast<void*>(nullptr)), "\\(0x10 against 0x0\\)");
  EXPECT_DEATH(STILLWAKE_CHECK_EQ(std::string("asleep"), std::string("awake")), "\\(asleep against awake\\)");
  EXPECT_DEATH(STILLWAKE_CHECK(1 > 2), "1 > 2.*\\(0 against 1\\)");
}

TEST(Check, EvaluatesEachSideOnceAndPassesInSilence) {
  int evaluated = 0;
  STILLWAKE_CHECK_LT(++evaluated, 10);
  STILLWAKE_CHECK(++evaluated == 2);
  EXPECT_EQ(evaluated, 2);
}

} // namespace
} // namespace stillwake
