// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

#include <vector>

namespace stillwake {
namespace {

TEST(Cleanup, UndoesInReverse) {
  std::vector<int> undone;
  {
    const Cleanup first([&] { undone.push_back(1); });
    const Cleanup second([&] { undone.push_back(2); });
    EXPECT_TRUE(undone.empty());
  }
  EXPECT_EQ(undone, (std::vector<int>{2, 1}));
}

TEST(Cleanup, CancelledUndoesNothing) {
  int undone = 0;
  {
    Cleanup step([&] { ++undone; });
    step.cancel();
  }
  EXPECT_EQ(undone, 0);
}

} // namespace
} // namespace stillwake
