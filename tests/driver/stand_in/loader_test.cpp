// SPDX-License-Identifier: Apache-2.0
// What opening says of drivers that this machine need not have: the libcuda.so.1 that is found is our own.
#include "allocator/base/dynamic_library.h"
#include "allocator/driver/driver_layer.h"
#include "tests/driver/environment.h"

#include <gtest/gtest.h>

namespace stillwake {
namespace {

DriverOptions cuda() {
  DriverOptions options;
  options.kind = DriverKind::kCuda;
  options.faults = "";
  return options;
}

TEST(Loader, AWholeDriverOpensAndDescribesItself) {
  const Result<Driver> driver = Driver::open(cuda());
  ASSERT_TRUE(driver) << driver.error().describe();
  EXPECT_EQ(driver->kind(), DriverKind::kCuda);
  EXPECT_EQ(driver->emulation(), nullptr);
  EXPECT_EQ(driver->describe(), "CUDA driver 13.1, 2 devices (Stand-in)");
  const EnvironmentScope count("STAND_IN_COUNT", "1");
  EXPECT_EQ(Driver::open(cuda())->describe(), "CUDA driver 13.1, 1 device (Stand-in)");
}

TEST(Loader, AMissingCallIsNamedWithItsVersion) {
  const EnvironmentScope lacks("STAND_IN_LACKS", "cuMemCreate");
  const Result<Driver> driver = Driver::open(cuda());
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, ErrorCode::kDriverTooOld);
  EXPECT_EQ(driver.error().message, "the CUDA driver has no cuMemCreate of CUDA 10.2; a newer driver is needed");
}

TEST(Loader, AnOlderVersionOfACallIsNotTaken) {
  const EnvironmentScope old("STAND_IN_OLD", "cuGraphInstantiateWithFlags");
  const Result<Driver> driver = Driver::open(cuda());
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, ErrorCode::kDriverTooOld);
  EXPECT_NE(driver.error().message.find("cuGraphInstantiateWithFlags of CUDA 11.4"), std::string::npos)
      << driver.error().message;
}

TEST(Loader, AnOptionalCallMayBeMissing) {
  for (const char* how : {"STAND_IN_LACKS", "STAND_IN_OLD"}) {
    const EnvironmentScope lacks(how, "cuCtxRecordEvent");
    const Result<Driver> driver = Driver::open(cuda());
    ASSERT_TRUE(driver) << driver.error().describe();
    EXPECT_FALSE(driver->table().cuCtxRecordEvent);
    EXPECT_TRUE(driver->table().cuEventRecord);
  }
  const Result<Driver> whole = Driver::open(cuda());
  ASSERT_TRUE(whole);
  EXPECT_TRUE(whole->table().cuCtxRecordEvent);
}

TEST(Loader, NoDeviceIsADriverMissing) {
  const struct {
    const char* variable;
    const char* value;
    const char* says;
  } rows[] = {{"STAND_IN_INIT", "100", "found no device"},
              {"STAND_IN_COUNT", "0", "found no device"},
              {"STAND_IN_INIT", "34", "stub"}};
  for (const auto& row : rows) {
    const EnvironmentScope scope(row.variable, row.value);
    const Result<Driver> driver = Driver::open(cuda());
    ASSERT_FALSE(driver);
    EXPECT_EQ(driver.error().code, ErrorCode::kDriverMissing);
    EXPECT_NE(driver.error().message.find(row.says), std::string::npos) << driver.error().message;
    EXPECT_NE(driver.error().message.find("set STILLWAKE_DRIVER=emulated"), std::string::npos);
  }
}

TEST(Loader, AnyOtherFailureOfInitialisingIsACallThatFailed) {
  const EnvironmentScope mismatch("STAND_IN_INIT", "803");
  const Result<Driver> driver = Driver::open(cuda());
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, ErrorCode::kDriverCallFailed);
  EXPECT_EQ(driver.error().driver_error, 803);
  EXPECT_EQ(driver.error().message, "initialising the CUDA driver: CUDA_ERROR_OF_THE_STAND_IN");
}

TEST(Loader, ADeviceThatCannotServeIsRefusedByName) {
  Result<Driver> driver = Driver::open(cuda());
  ASSERT_TRUE(driver);
  {
    const EnvironmentScope without("STAND_IN_VIRTUAL", "0");
    const Result<Device*> device = driver->device(DeviceIndex(1));
    ASSERT_FALSE(device);
    EXPECT_EQ(device.error().code, ErrorCode::kDriverTooOld);
    EXPECT_EQ(device.error().message, "device 1 (Stand-in) has no virtual memory management, which Stillwake needs");
  }
  const Result<Device*> device = driver->device(DeviceIndex(1));
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().message,
            "device 1 (Stand-in) hands out memory in pieces of 64.0 MiB (67108864 bytes); Stillwake needs pages of 2.0 "
            "MiB (2097152 bytes)");
}

} // namespace
} // namespace stillwake
