// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

#include <memory>

namespace stillwake {
namespace {

Result<void> fail_when(bool bad, int* evaluated) {
  ++*evaluated;
  if (bad) {
    return failure(ErrorCode::kBusy, "a capture runs");
  }
  return {};
}

Result<int> tries(bool bad, int* evaluated) {
  STILLWAKE_TRY(fail_when(bad, evaluated));
  return 7;
}

TEST(Result, TryGoesOnAfterSuccess) {
  int evaluated = 0;
  const Result<int> result = tries(false, &evaluated);
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, 7);
  EXPECT_EQ(evaluated, 1);
}

TEST(Result, TryHandsTheErrorOnAndEvaluatesOnce) {
  int evaluated = 0;
  const Result<int> result = tries(true, &evaluated);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kBusy);
  EXPECT_EQ(result.error().message, "a capture runs");
  EXPECT_EQ(evaluated, 1);
}

Result<std::unique_ptr<int>> passes_on(Result<std::unique_ptr<int>> made) {
  STILLWAKE_TRY(made);
  **made += 1;
  return made;
}

TEST(Result, TryTakesAVariableOfAMoveOnlyType) {
  Result<std::unique_ptr<int>> made = passes_on(std::make_unique<int>(41));
  ASSERT_TRUE(made);
  EXPECT_EQ(**made, 42);
  Result<std::unique_ptr<int>> failed = passes_on(failure(ErrorCode::kLost, "gone"));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kLost);
  EXPECT_EQ(failed.error().message, "gone");
}

TEST(Result, TryLeavesAConstErrorWhole) {
  const Result<void> error = failure(ErrorCode::kAsleep, "wake the shard first");
  const auto hand_on = [&]() -> Result<int> {
    STILLWAKE_TRY(error);
    return 1;
  };
  EXPECT_EQ(hand_on().error().message, "wake the shard first");
  EXPECT_EQ(error.error().message, "wake the shard first");
}

} // namespace
} // namespace stillwake
