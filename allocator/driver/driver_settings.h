// SPDX-License-Identifier: Apache-2.0
// The DriverSettings are what a Driver is opened with, nothing left open: an option that was given, else the
// environment variable, else the default. An empty variable counts as unset.
#pragma once

#include "allocator/driver/call_gate.h"
#include "allocator/driver/driver.h"

#include <string>
#include <vector>

namespace stillwake {

struct DriverSettings {
  DriverKind kind = DriverKind::kCuda;
  int emulated_devices = 1;
  Bytes emulated_memory = kGiB * 8;
  std::string emulated_share;
  std::vector<Fault> faults;
};

/// Errors: kInvalidArgument for a wrong value, also one that this kind of driver would not use: a typing mistake is
/// told, not passed over. The message names the option or the variable and the right values.
[[nodiscard]] Result<DriverSettings> settle(const DriverOptions& options);

} // namespace stillwake
