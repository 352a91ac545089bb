// SPDX-License-Identifier: Apache-2.0
// A MemoryShortage is the way of a transition from "out of device memory" to its next try: the owners of all shards on
// the driver are asked once whether they can give memory up, then it waits for as long as it may.
#pragma once

#include "shard/device_groups.h"
#include "shard/registry.h"

#include <optional>

namespace stillwake {

class MemoryShortage {
public:
  /// Unset `timeout` does not wait.
  MemoryShortage(const Registry& registry, Clock& clock, std::optional<Duration> timeout)
      : registry_(registry), clock_(clock), timeout_(timeout) {}

  /// After a try that failed and holds no device memory any more: returns when another one is worth it, or else the
  /// error to answer. Any other error than kOutOfDeviceMemory is answered as it is; that one is kTimedOut when it was
  /// waited for in vain. The time begins with the first shortage.
  [[nodiscard]] Result<void> wait(Error lack, const std::vector<DeviceNeed>& needs);

private:
  bool ask_owners(const std::vector<DeviceNeed>& needs);

  const Registry& registry_;
  Clock& clock_;
  const std::optional<Duration> timeout_;
  std::optional<TimePoint> begin_;
};

} // namespace stillwake
