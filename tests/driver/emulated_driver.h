// SPDX-License-Identifier: Apache-2.0
// An EmulatedDriver is the fixture of tests that need one emulated driver with a few devices, and its log.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/driver/emulation/emulation.h"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace stillwake {

class EmulatedDriver : public ::testing::Test {
protected:
  void SetUp() override {
    DriverOptions options;
    options.kind = DriverKind::kEmulated;
    options.emulated_devices = 2;
    options.emulated_memory = kMiB * 64;
    options.faults = ""; // whatever the environment says
    options.log.context = this;
    options.log.write = [](void* context, LogLevel, const char* text) {
      auto* self = static_cast<EmulatedDriver*>(context);
      const std::lock_guard<std::mutex> lock(self->log_mutex_);
      self->log_.emplace_back(text);
    };
    Result<Driver> opened = Driver::open(options);
    ASSERT_TRUE(opened) << opened.error().describe();
    driver_.emplace(std::move(*opened));
    const Result<Device*> device = driver_->device(DeviceIndex(0));
    ASSERT_TRUE(device) << device.error().describe();
    device_ = *device;
  }

  DriverTable& table() { return driver_->table(); }
  void arm(const char* faults) { driver_->gate().arm(*CallGate::parse(faults)); }
  CUcontext current() {
    CUcontext context = nullptr;
    EXPECT_EQ(table().cuCtxGetCurrent(&context), CUDA_SUCCESS);
    return context;
  }
  std::vector<std::string> log() {
    const std::lock_guard<std::mutex> lock(log_mutex_);
    return log_;
  }

  std::optional<Driver> driver_;
  Device* device_ = nullptr;

private:
  std::mutex log_mutex_;
  std::vector<std::string> log_;
};

} // namespace stillwake
