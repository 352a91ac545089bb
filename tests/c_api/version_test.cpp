// SPDX-License-Identifier: Apache-2.0
#include "shard/stillwake_c.h"

#include <gtest/gtest.h>

#include <string>

namespace {

TEST(Version, IsTheProjects) {
  EXPECT_STREQ(stillwake_version(), STILLWAKE_PROJECT_VERSION);
  EXPECT_EQ(std::to_string(STILLWAKE_VERSION_MAJOR) + "." + std::to_string(STILLWAKE_VERSION_MINOR) + "." +
                std::to_string(STILLWAKE_VERSION_PATCH),
            STILLWAKE_PROJECT_VERSION);
}

TEST(Version, EveryStatusHasAName) {
  EXPECT_STREQ(stillwake_status_name(0), "success");
  for (int status = 1; status <= STILLWAKE_TIMED_OUT; ++status) {
    EXPECT_STRNE(stillwake_status_name(status), "unknown status") << status;
  }
  EXPECT_STREQ(stillwake_status_name(STILLWAKE_TIMED_OUT + 1), "unknown status");
  EXPECT_STREQ(stillwake_status_name(-1), "unknown status");
  EXPECT_STREQ(stillwake_state_name(8), "unknown state");
  EXPECT_STREQ(stillwake_state_name(-1), "unknown state");
  EXPECT_STRNE(stillwake_state_name(STILLWAKE_STATE_LOST), "unknown state");
}

} // namespace
