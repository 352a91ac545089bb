// SPDX-License-Identifier: Apache-2.0
// Runs the tests on the driver that STILLWAKE_DRIVER names. Exit 77 where that is a GPU and there is none.
#include "allocator/driver/driver_layer.h"

#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  {
    const stillwake::Result<stillwake::Driver> driver = stillwake::Driver::open();
    if (!driver && driver.error().code == stillwake::ErrorCode::kDriverMissing) {
      std::printf("skipped: %s\n", driver.error().describe().c_str());
      return 77;
    }
    if (driver) {
      std::printf("driver: %s\n", driver->describe().c_str());
    }
  }
  return RUN_ALL_TESTS();
}
