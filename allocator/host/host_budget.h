// SPDX-License-Identifier: Apache-2.0
// The HostBudget counts the pinned bytes of one process against what the user gave and what its cgroup allows.
// Available memory is a warning only: machines here grow their memory on demand, a guess refuses what would work.
#pragma once

#include "allocator/base/base.h"

#include <optional>
#include <string>

namespace stillwake {

class HostBudget {
public:
  /// `limit` is the user's; unset leaves the cgroup's limit alone to decide (unlimited without one). The cgroup is read
  /// below `cgroup_root`, which is "" but in tests.
  explicit HostBudget(std::optional<Bytes> limit = std::nullopt, std::string cgroup_root = "");

  /// Takes `size` or nothing. Any thread. kOverBudget names needed, free and limit bytes and who set the limit. The
  /// cgroup is read anew each time: what other processes of the group hold (other ranks) counts against its limit, and
  /// so does what was taken and has no memory yet, which the group does not see. A part of the limit is left to the
  /// processes themselves: see CgroupLimit.
  [[nodiscard]] Result<void> take(Bytes size);
  /// So much of what was taken before will be given back to the system and taken anew.
  void expect(Bytes size);
  /// So much of what was taken or expected has memory now, or will never have it. Called for each byte once.
  void settle(Bytes size);
  void give_back(Bytes size);

  /// Below what is taken already it takes nothing away; the next `take` fails.
  void set_limit(std::optional<Bytes> limit);
  Bytes used() const;
  /// What was taken or is expected and has no memory yet.
  Bytes without_memory() const;
  /// The smaller of the user's limit and the cgroup's; unset when there is neither.
  std::optional<Bytes> limit() const;

private:
  const std::string cgroup_root_;
  mutable RankedMutex mutex_{LockRank::kHost};
  std::optional<Bytes> limit_; // guarded by mutex_
  Bytes used_;                 // guarded by mutex_
  Bytes without_memory_;       // guarded by mutex_; on the way into the group's usage
};

} // namespace stillwake
