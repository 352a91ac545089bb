// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/host_budget.h"

#include <utility>

namespace stillwake {

HostBudget::HostBudget(std::optional<Bytes> limit, std::string cgroup_root)
    : cgroup_root_(std::move(cgroup_root)), limit_(limit) {}

Result<void> HostBudget::take(Bytes size) {
  if (size == Bytes(0)) {
    return {};
  }
  RankedLock lock(mutex_);
  if (limit_ && size > left_of(*limit_, used_)) {
    return failure(ErrorCode::kOverBudget, "pinned host memory " + shortage(size, left_of(*limit_, used_), *limit_,
                                                                            "the budget that was given"));
  }
  // Read under the lock: memory that came since would be in neither count.
  const auto cgroup = read_cgroup_limit(cgroup_root_);
  if (cgroup && size > cgroup->free(without_memory_)) {
    return failure(ErrorCode::kOverBudget, "pinned host memory " + shortage(size, cgroup->free(without_memory_),
                                                                            cgroup->limit, cgroup->described()));
  }
  used_ += size;
  without_memory_ += size;
  return {};
}

void HostBudget::expect(Bytes size) {
  RankedLock lock(mutex_);
  without_memory_ += size;
}

void HostBudget::settle(Bytes size) {
  RankedLock lock(mutex_);
  STILLWAKE_CHECK_LE(size, without_memory_);
  without_memory_ -= size;
}

void HostBudget::give_back(Bytes size) {
  RankedLock lock(mutex_);
  STILLWAKE_CHECK_LE(size, used_);
  used_ -= size;
}

void HostBudget::set_limit(std::optional<Bytes> limit) {
  RankedLock lock(mutex_);
  limit_ = limit;
}

Bytes HostBudget::used() const {
  RankedLock lock(mutex_);
  return used_;
}

Bytes HostBudget::without_memory() const {
  RankedLock lock(mutex_);
  return without_memory_;
}

std::optional<Bytes> HostBudget::limit() const {
  const auto cgroup = read_cgroup_limit(cgroup_root_);
  RankedLock lock(mutex_);
  if (!cgroup || (limit_ && *limit_ < cgroup->limit)) {
    return limit_;
  }
  return cgroup->limit;
}

} // namespace stillwake
