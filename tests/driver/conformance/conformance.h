// SPDX-License-Identifier: Apache-2.0
// Conformance is the fixture of the suite that runs on both drivers: one driver for the program, chosen by
// STILLWAKE_DRIVER, its first device's context current for the length of a test. Tests call the table alone, and each
// pins a fact of the real driver (first seen: CUDA 13.0, driver 580, H200) that the layers above rely on.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/driver/error_names.h"

#include <gtest/gtest.h>

#include <string>

namespace stillwake {

/// The answer as cuda.h writes it.
inline std::string named(CUresult result) {
  if (result == CUDA_SUCCESS) {
    return "CUDA_SUCCESS";
  }
  const char* name = error_name(result);
  return name != nullptr ? name : std::to_string(static_cast<int>(result));
}

class Conformance : public ::testing::Test {
public:
  /// The program's driver; set by main before any test runs.
  static inline Driver* program_driver = nullptr;

protected:
  void SetUp() override {
    const Result<Device*> device = driver().device(DeviceIndex(0));
    ASSERT_TRUE(device) << device.error().describe();
    device_ = *device;
    ASSERT_EQ(named(CUDA_SUCCESS), named(table().cuCtxPushCurrent(device_->context())));
  }
  void TearDown() override {
    // A test that killed the context, or left a capture behind, is told here and not by its successor.
    EXPECT_EQ(named(CUDA_SUCCESS), named(table().cuCtxSynchronize()));
    CUcontext popped = nullptr;
    EXPECT_EQ(named(CUDA_SUCCESS), named(table().cuCtxPopCurrent(&popped)));
    EXPECT_EQ(popped, device_->context());
    CUcontext rest = nullptr;
    EXPECT_EQ(named(CUDA_SUCCESS), named(table().cuCtxGetCurrent(&rest)));
    EXPECT_EQ(rest, nullptr);
  }

  static Driver& driver() { return *program_driver; }
  static DriverTable& table() { return driver().table(); }
  Device& device() { return *device_; }

private:
  Device* device_ = nullptr;
};

} // namespace stillwake

/// Compares what a call answers with what it must answer, and prints both by name.
#define EXPECT_ANSWER(expected, call) EXPECT_EQ(::stillwake::named(expected), ::stillwake::named(call))
#define ASSERT_ANSWER(expected, call) ASSERT_EQ(::stillwake::named(expected), ::stillwake::named(call))
