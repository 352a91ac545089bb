// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/host_budget.h"

#include <algorithm>
#include <utility>

namespace stillwake {
namespace {

Bytes left_of(Bytes limit, Bytes used) { return used < limit ? limit - used : Bytes(0); }

std::string over_budget(Bytes needed, Bytes free, Bytes limit, const std::string& who) {
  return "pinning needs " + exact(needed) + " more of host memory, free are " + exact(free) + " of " + readable(limit) +
         " (" + who + ")";
}

} // namespace

HostBudget::HostBudget(std::optional<Bytes> limit, std::string cgroup_root)
    : cgroup_root_(std::move(cgroup_root)), limit_(limit) {}

Result<void> HostBudget::take(Bytes size) {
  if (size == Bytes(0)) {
    return {};
  }
  const auto cgroup = read_cgroup_limit(cgroup_root_);
  RankedLock lock(mutex_);
  if (limit_ && size > left_of(*limit_, used_)) {
    return failure(ErrorCode::kOverBudget,
                   over_budget(size, left_of(*limit_, used_), *limit_, "the budget that was given"));
  }
  if (cgroup) {
    // Taken bytes that nobody has touched yet are in no group's usage, so both counts must hold.
    const Bytes free = std::min(left_of(cgroup->limit, used_), cgroup->room(), [](Bytes a, Bytes b) { return a < b; });
    if (size > free) {
      return failure(ErrorCode::kOverBudget,
                     over_budget(size, free, cgroup->limit, "the limit of the control group " + cgroup->folder));
    }
  }
  used_ += size;
  return {};
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

std::optional<Bytes> HostBudget::limit() const {
  const auto cgroup = read_cgroup_limit(cgroup_root_);
  RankedLock lock(mutex_);
  if (!cgroup || (limit_ && *limit_ < cgroup->limit)) {
    return limit_;
  }
  return cgroup->limit;
}

} // namespace stillwake
