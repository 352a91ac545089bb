// SPDX-License-Identifier: Apache-2.0
// Quiescing a device: all work that was queued on it so far is done, or a capture or the time given is in the way.
#pragma once

#include "allocator/driver/driver_layer.h"

#include <optional>
#include <vector>

namespace stillwake {

/// Refuses with kBusy when one of the streams is being captured. All of them exist.
[[nodiscard]] Result<void> refuse_captures(Device& device, const std::vector<Stream>& streams);

/// Waits until everything queued on the device's primary context is done. kBusy: a capture runs. kTimedOut: says so,
/// nothing else happened. kLost.
[[nodiscard]] Result<void> quiesce(Device& device, std::optional<Duration> timeout);

} // namespace stillwake
