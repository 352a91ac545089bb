// SPDX-License-Identifier: Apache-2.0
// The memory limit of the control group that this process runs in: of its own group and of every group above it, the
// one that leaves the least room. Both versions of control groups are read.
#pragma once

#include "allocator/base/units.h"

#include <optional>
#include <string>

namespace stillwake {

struct CgroupLimit {
  Bytes limit;
  Bytes in_use;       ///< what the group holds and cannot drop: everything but clean and dirty file pages
  std::string folder; ///< where the limit stands, for the message

  Bytes room() const { return in_use < limit ? limit - in_use : Bytes(0); }
};

/// Reads <root>/proc/self/cgroup and the folders below <root>/sys/fs/cgroup that it names. Unset when no group has a
/// limit or nothing can be read. `root` is "" but in tests.
std::optional<CgroupLimit> read_cgroup_limit(const std::string& root = "");

} // namespace stillwake
