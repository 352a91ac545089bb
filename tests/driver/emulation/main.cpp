// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/emulation/other_process.h"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  if (const int status = stillwake::play_role(); status >= 0) {
    return status;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
