// SPDX-License-Identifier: Apache-2.0
// PinningTurns orders the calls that pin, and lets a copy go first. The driver does one at a time whoever asks, and is
// not fair: with one pin after the other on its way, a copy that wants to start waits for all of them. So one thread
// pins at a time, and none begins while a copier has something to queue.
#pragma once

#include "allocator/base/base.h"

#include <condition_variable>

namespace stillwake {

class PinningTurns {
public:
  /// Waits for the turn to pin.
  void begin_pin() {
    RankedLock lock(mutex_);
    changed_.wait(lock, [this] { return !pinning_ && copiers_ == 0; });
    pinning_ = true;
  }
  void end_pin() {
    RankedLock lock(mutex_);
    pinning_ = false;
    changed_.notify_all();
  }
  /// No new pin begins until end_copy; one that is under way ends. Never waits. Many copiers may hold off at once.
  void begin_copy() {
    RankedLock lock(mutex_);
    ++copiers_;
  }
  void end_copy() {
    RankedLock lock(mutex_);
    --copiers_;
    changed_.notify_all();
  }

private:
  RankedMutex mutex_{LockRank::kPinning};
  std::condition_variable_any changed_;
  bool pinning_ = false; // guarded by mutex_
  int copiers_ = 0;      // guarded by mutex_
};

} // namespace stillwake
