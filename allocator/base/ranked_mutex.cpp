// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/ranked_mutex.h"

#include "allocator/base/check.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace stillwake {
namespace {

#ifndef NDEBUG
// Without a destructor: objects of static storage are destroyed after those of the thread, and they take locks too.
struct Held {
  std::array<LockRank, 32> ranks;
  std::size_t count;
};
thread_local Held held{};

void note_taking(LockRank rank) {
  for (std::size_t i = 0; i < held.count; ++i) {
    STILLWAKE_CHECK_LT(static_cast<int>(held.ranks[i]), static_cast<int>(rank));
  }
}
void note_taken(LockRank rank) {
  STILLWAKE_CHECK_LT(held.count, held.ranks.size());
  held.ranks[held.count++] = rank;
}
void note_released(LockRank rank) {
  const auto end = held.ranks.begin() + static_cast<std::ptrdiff_t>(held.count);
  const auto found = std::find(held.ranks.begin(), end, rank); // ranks differ, but for try_lock: any of them will do
  STILLWAKE_CHECK(found != end);
  std::move(found + 1, end, found);
  --held.count;
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
