// SPDX-License-Identifier: Apache-2.0
// The PinningWorkers are the threads of a HostArena. They serve all jobs at once, one unit of each in turn, so that the
// mirrors of several devices grow together. They are started when the first job needs them and stay.
#pragma once

#include "allocator/base/base.h"

#include <condition_variable>
#include <deque>
#include <thread>
#include <vector>

namespace stillwake {

/// Something with many small units that any thread may do.
class PinningWork {
public:
  /// Does the next unit; false when there was none left to take. Several threads at once.
  virtual bool step() = 0;

protected:
  ~PinningWork() = default;

private:
  friend class PinningWorkers;
  int inside_ = 0; // threads in step() now; guarded by the workers' mutex
};

class PinningWorkers {
public:
  explicit PinningWorkers(int count);
  /// Only with no work left. Never in a child made by fork, which has no such threads: there the object is leaked.
  ~PinningWorkers();
  PinningWorkers(const PinningWorkers&) = delete;
  PinningWorkers& operator=(const PinningWorkers&) = delete;

  /// From the next `submit` on. One means: no thread of ours, the caller does the work where it would wait.
  void set_count(int count);

  /// Lets the threads work until there is no unit left. False when the caller has to do it all: the count is one, or
  /// the system gives no thread.
  bool submit(PinningWork& work);
  /// Returns when no thread is or will be in `work`. Nothing happens for work that was not submitted.
  void withdraw(PinningWork& work);

private:
  void run(std::size_t index);

  RankedMutex mutex_{LockRank::kHost};
  std::condition_variable_any changed_;
  // All below guarded by mutex_.
  std::size_t wanted_;
  std::size_t active_ = 0; // threads with a lower index take units
  bool stopping_ = false;
  std::deque<PinningWork*> queue_;
  std::vector<std::thread> threads_;
};

} // namespace stillwake
