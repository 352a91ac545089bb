// SPDX-License-Identifier: Apache-2.0
// Runs the shard tests on the driver that STILLWAKE_DRIVER names; exits 77 where that is a GPU and there is none.
#include "allocator/driver/driver.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (const char* wanted = std::getenv("STILLWAKE_DRIVER"); wanted != nullptr && std::string(wanted) == "cuda") {
    if (auto driver = stillwake::Driver::open(); !driver || driver->device_count() == 0) {
      std::cout << "no GPU: " << (driver ? "no device" : driver.error().describe()) << std::endl;
      return 77;
    }
  }
  return RUN_ALL_TESTS();
}
