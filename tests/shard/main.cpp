// SPDX-License-Identifier: Apache-2.0
// Runs the shard tests on the driver that STILLWAKE_DRIVER names; exits 77 where that is a GPU and there is none.
//
// --cycles=N sets how many cycles the test of a long life runs.
#include "allocator/driver/driver.h"
#include "tests/shard/cycles.h"
#include "tests/shard/neighbour_process.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (const int status = stillwake::play_neighbour(); status >= 0) {
    return status;
  }
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (const std::string argument = argv[i]; argument.rfind("--cycles=", 0) == 0) {
      stillwake::Cycles::count = std::stoi(argument.substr(9));
    }
  }
  if (const char* wanted = std::getenv("STILLWAKE_DRIVER"); wanted != nullptr && std::string(wanted) == "cuda") {
    if (auto driver = stillwake::Driver::open(); !driver || driver->device_count() == 0) {
      std::cout << "no GPU: " << (driver ? "no device" : driver.error().describe()) << std::endl;
      return 77;
    }
  }
  return RUN_ALL_TESTS();
}
