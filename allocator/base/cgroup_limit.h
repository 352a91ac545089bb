// SPDX-License-Identifier: Apache-2.0
// The memory limit of the control group that this process runs in: of its own group and of every group above it, the
// one that leaves the least room. Both versions of control groups are read.
#pragma once

#include "allocator/base/sizes.h"

#include <optional>
#include <string>

namespace stillwake {

struct CgroupLimit {
  Bytes limit;
  Bytes in_use;       ///< what the group holds and cannot drop: everything but clean and dirty file pages
  std::string folder; ///< where the limit stands, for the message

  Bytes room() const { return left_of(limit, in_use); }
  /// A sixteenth of the limit, 64 MiB at most: for page tables, stacks, and what the rest of the program takes
  /// meanwhile. The system ends a process of a group that is full.
  Bytes kept_for_processes() const;
  /// What may be taken of the group when `coming` bytes are on their way into `in_use`.
  Bytes free(Bytes coming = Bytes(0)) const { return left_of(room(), coming + kept_for_processes()); }
  /// Whose limit it is: the last part of a `shortage`.
  std::string described() const;
};

/// Reads <root>/proc/self/cgroup and the folders below <root>/sys/fs/cgroup that it names. Unset when no group has a
/// limit or nothing can be read. `root` is "" but in tests.
std::optional<CgroupLimit> read_cgroup_limit(const std::string& root = "");

} // namespace stillwake
