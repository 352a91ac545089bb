// SPDX-License-Identifier: Apache-2.0
// The Clock that time-outs and reports read. Tests pass one that they step by hand.
#pragma once

#include <chrono>
#include <thread>

namespace stillwake {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
public:
  virtual ~Clock() = default;
  virtual TimePoint now() { return std::chrono::steady_clock::now(); }
  virtual void sleep_for(Duration duration) { std::this_thread::sleep_for(duration); }
};

inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

} // namespace stillwake
