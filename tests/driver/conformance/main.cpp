// SPDX-License-Identifier: Apache-2.0
// Opens the driver that the environment names and runs the suite on it; 77 means that there is none to run on.
#include "tests/driver/conformance/conformance.h"

#include <cstdio>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // Tests of what kills a context run in a program started anew, with a context of its own.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto driver = stillwake::Driver::open();
  if (!driver) {
    std::fprintf(stderr, "%s\n", driver.error().describe().c_str());
    return driver.error().code == stillwake::ErrorCode::kDriverMissing ? 77 : 1;
  }
  std::printf("on the %s\n", driver->describe().c_str());
  std::fflush(stdout);
  stillwake::Conformance::program_driver = &*driver;
  return RUN_ALL_TESTS();
}
