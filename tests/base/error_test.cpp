// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace stillwake {
namespace {

TEST(Error, EveryCodeHasWordsOfItsOwn) {
  std::set<std::string> words;
  for (int code = 1; code <= 13; ++code) {
    words.insert(to_string(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(words.size(), 13u);
  EXPECT_EQ(words.count("unknown error"), 0u);
  EXPECT_STREQ(to_string(ErrorCode::kOutOfDeviceMemory), "out of device memory");
  EXPECT_STREQ(to_string(ErrorCode::kTimedOut), "timed out");
  EXPECT_STREQ(to_string(static_cast<ErrorCode>(99)), "unknown error");
}

// The C interface has these numbers: they never change.
TEST(Error, NumbersStand) {
  EXPECT_EQ(static_cast<int>(ErrorCode::kOutOfDeviceMemory), 1);
  EXPECT_EQ(static_cast<int>(ErrorCode::kAsleep), 4);
  EXPECT_EQ(static_cast<int>(ErrorCode::kInvalidArgument), 6);
  EXPECT_EQ(static_cast<int>(ErrorCode::kDriverCallFailed), 9);
  EXPECT_EQ(static_cast<int>(ErrorCode::kTimedOut), 13);
}

TEST(Error, DescribeSaysCodeMessageAndCall) {
  Error error;
  error.code = ErrorCode::kOutOfDeviceMemory;
  EXPECT_EQ(error.describe(), "out of device memory");
  error.message = "creating 2.0 MiB";
  EXPECT_EQ(error.describe(), "out of device memory: creating 2.0 MiB");
  error.call = "cuMemCreate";
  error.driver_error = 2;
  EXPECT_EQ(error.describe(), "out of device memory: creating 2.0 MiB (cuMemCreate: CUDA error 2)");
  error.note = "an injected fault";
  EXPECT_EQ(error.describe(), "out of device memory: creating 2.0 MiB (cuMemCreate: CUDA error 2); an injected fault");
}

} // namespace
} // namespace stillwake
