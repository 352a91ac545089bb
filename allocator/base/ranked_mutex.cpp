// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/ranked_mutex.h"

#include "allocator/base/check.h"

#include <algorithm>
#include <vector>

namespace stillwake {
namespace {

#ifndef NDEBUG
thread_local std::vector<LockRank> held;

void note_taking(LockRank rank) {
  for (LockRank other : held) {
    STILLWAKE_CHECK_LT(static_cast<int>(other), static_cast<int>(rank));
  }
}
void note_taken(LockRank rank) { held.push_back(rank); }
void note_released(LockRank rank) {
  auto last = std::find(held.rbegin(), held.rend(), rank);
  STILLWAKE_CHECK(last != held.rend());
  held.erase(std::next(last).base());
}
#else
void note_taking(LockRank) {}
void note_taken(LockRank) {}
void note_released(LockRank) {}
#endif

} // namespace

void RankedMutex::lock() {
  note_taking(rank_);
  mutex_.lock();
  note_taken(rank_);
}

void RankedMutex::unlock() {
  note_released(rank_);
  mutex_.unlock();
}

bool RankedMutex::try_lock() {
  if (!mutex_.try_lock()) {
    return false;
  }
  note_taken(rank_);
  return true;
}

} // namespace stillwake
