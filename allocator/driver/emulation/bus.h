// SPDX-License-Identifier: Apache-2.0
// A Bus is one direction between a device and the host: it carries one copy at a time, each at least as long as its
// bytes take at the rate that was set.
#pragma once

#include "allocator/base/base.h"

#include <algorithm>
#include <mutex>
#include <thread>

namespace stillwake::emulation {

class Bus {
public:
  /// Books the bus for a copy; the time when it may be over.
  TimePoint book(Bytes size, std::uint64_t bytes_per_second) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (bytes_per_second == 0) {
      return now;
    }
    const double nanoseconds = static_cast<double>(size.count()) / static_cast<double>(bytes_per_second) * 1e9;
    const std::lock_guard lock(mutex_);
    free_at_ = std::max(free_at_, now) + Duration(static_cast<Duration::rep>(nanoseconds));
    return free_at_;
  }

private:
  std::mutex mutex_;
  TimePoint free_at_{}; // guarded by mutex_
};

} // namespace stillwake::emulation
