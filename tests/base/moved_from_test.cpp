// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

#include <memory>

namespace stillwake {
namespace {

TEST(MovedFrom, TheErrorNamesTheType) {
  const Error error = moved_from("Shard");
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message, "this Shard was moved from and owns nothing; use the one that it was moved to");
}

TEST(MovedFrom, WhatIsOwnedIsAnsweredOtherwise) {
  const auto owned = std::make_unique<int>(7);
  EXPECT_EQ(&not_moved_from(owned, "Shard"), owned.get());
}

TEST(MovedFromDeathTest, ACallThatCannotFailEndsTheProcessWithASentence) {
  const std::unique_ptr<int> nothing;
  EXPECT_DEATH(not_moved_from(nothing, "Ticket"), "stillwake: this Ticket was moved from");
}

} // namespace
} // namespace stillwake
