// SPDX-License-Identifier: Apache-2.0
// How much more memory a process can touch before the system ends it, or another one, for lack of memory.
#pragma once

#include "allocator/base/units.h"

#include <optional>
#include <string>

namespace stillwake {

struct MemoryRoom {
  Bytes free;
  std::string whose; ///< "the control group /sys/fs/cgroup/job" or "the system", for the message
};

/// The least of what control groups leave (see CgroupLimit) and what the system has available, swap included. Unset
/// when nothing can be read. `root` is "" but in tests.
std::optional<MemoryRoom> memory_room(const std::string& root = "");

} // namespace stillwake
