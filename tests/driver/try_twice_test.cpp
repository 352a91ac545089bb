// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/try_twice.h"
#include "tests/driver/emulated_driver.h"

namespace stillwake {
namespace {

class TryTwice : public EmulatedDriver {
protected:
  /// Fails the first `failures` attempts; the answer is what try_twice said, `attempts_` how often it tried.
  bool answer(int failures, CUresult error) {
    attempts_ = 0;
    return try_twice(table(), [&]() -> Result<void> {
      return ++attempts_ > failures ? Result<void>()
                                    : check_call(table(), CallId::cuMemRelease, error, "giving a sample back");
    });
  }

  int attempts_ = 0;
};

TEST_F(TryTwice, WhatWorksIsDoneOnce) {
  EXPECT_TRUE(answer(0, CUDA_SUCCESS));
  EXPECT_EQ(attempts_, 1);
  EXPECT_TRUE(log().empty());
}

TEST_F(TryTwice, OneFailureIsForgotten) {
  EXPECT_TRUE(answer(1, CUDA_ERROR_UNKNOWN));
  EXPECT_EQ(attempts_, 2);
  EXPECT_TRUE(log().empty());
}

TEST_F(TryTwice, TwoFailuresAreLogged) {
  EXPECT_FALSE(answer(9, CUDA_ERROR_UNKNOWN));
  EXPECT_EQ(attempts_, 2);
  ASSERT_EQ(log().size(), 1u);
  EXPECT_NE(log()[0].find("giving a sample back"), std::string::npos) << log()[0];
}

TEST_F(TryTwice, ALostContextIsAskedOnce) {
  EXPECT_FALSE(answer(1, CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_EQ(attempts_, 1);
  EXPECT_EQ(log().size(), 1u);
}

} // namespace
} // namespace stillwake
