// SPDX-License-Identifier: Apache-2.0
// Settings and figures of the pinned host memory that all shards of one driver share. Where the driver is out of reach
// (in a child made by fork, at exit) a budget is not set and nothing is pinned.
#pragma once

#include "../allocator/driver/driver.h"

namespace stillwake {

/// At most so many pinned bytes for all shards of the driver; unset: only the cgroup's limit counts. What is pinned
/// already stays until it is trimmed.
void set_host_budget(Driver& driver, std::optional<Bytes> limit);
/// How many threads touch and pin; 0: as many as the machine has cores, 16 at most. 1 makes the order of calls
/// deterministic. kInvalidArgument below 0 or above 256.
[[nodiscard]] Result<void> set_pinning_threads(Driver& driver, int count);
/// Pinned by all shards of the driver now.
Bytes host_pinned(Driver& driver);

} // namespace stillwake
