// SPDX-License-Identifier: Apache-2.0
// The same step for several devices at once, whether the system has threads left or not.
#pragma once

#include "allocator/driver/driver_layer.h"

#include <functional>
#include <string>

namespace stillwake {

/// Runs `step` for 0 to `count` - 1, each once and all at once: the first on this thread, the others on threads of
/// their own. Those that the system gives no thread come on this thread after the first, with a warning in the log.
/// Returns when all are over. `what` they do completes "no thread could be started for".
void run_at_once(const DriverTable& table, const std::string& what, std::size_t count,
                 const std::function<void(std::size_t)>& step);

} // namespace stillwake
