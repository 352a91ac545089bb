// SPDX-License-Identifier: Apache-2.0
// The HostBudget counts the pinned bytes of one process against what the user gave and what its cgroup allows.
// Available memory is a warning only: machines here grow their memory on demand, a guess refuses what would work.
#pragma once

#include "allocator/base/base.h"

#include <optional>

namespace stillwake {

class HostBudget {
public:
  /// `limit` is the user's; unset leaves the cgroup's limit alone to decide (unlimited without one).
  explicit HostBudget(std::optional<Bytes> limit = std::nullopt);

  /// Takes `size` or nothing. kOverBudget names needed, free and limit bytes and who set the limit.
  [[nodiscard]] Result<void> take(Bytes size);
  void give_back(Bytes size);

  void set_limit(std::optional<Bytes> limit);
  Bytes used() const;
  /// The smaller of the user's limit and the cgroup's; unset when there is neither.
  std::optional<Bytes> limit() const;

private:
  mutable RankedMutex mutex_{LockRank::kHost};
  std::optional<Bytes> limit_;
  std::optional<Bytes> cgroup_limit_;
  Bytes used_;
};

} // namespace stillwake
