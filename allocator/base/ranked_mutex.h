// SPDX-License-Identifier: Apache-2.0
// A RankedMutex knows its place in the order of locks. Taking one whose rank is not higher than every lock already held
// by the thread aborts in debug builds, so a deadlock is found by the first run that could have met it.
#pragma once

#include <mutex>

namespace stillwake {

/// The order in which locks may be taken: an outer lock has the lower number.
enum class LockRank {
  kRegistry = 10,     ///< The set of shards of a driver.
  kTransition = 20,   ///< One transition of one shard at a time.
  kShard = 30,        ///< State, extents and page table of a shard.
  kHeap = 40,         ///< Central free ranges of a heap.
  kHeapCache = 50,    ///< One stripe of cached blocks.
  kFreeQueue = 60,    ///< Frees that wait.
  kTransfer = 65,     ///< One save, or one restore being queued, of an engine.
  kTransferPool = 66, ///< Events and digest buffers kept for reuse.
  kSave = 67,         ///< What a save has queued, told by several threads.
  kHost = 70,         ///< Pieces of a mirror, budget.
  kDriver = 80,       ///< Devices, counters, faults.
  kLog = 90,          ///< The log hook.
};

class RankedMutex {
public:
  explicit RankedMutex(LockRank rank) : rank_(rank) {}
  void lock();
  void unlock();
  bool try_lock();

private:
  std::mutex mutex_;
  LockRank rank_;
};

using RankedLock = std::unique_lock<RankedMutex>;

} // namespace stillwake
