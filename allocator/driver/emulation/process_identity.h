// SPDX-License-Identifier: Apache-2.0
// A ProcessIdentity names one process for good: its number and when it started. A number alone is given out again.
#pragma once

#include <cstdint>
#include <sys/types.h>

namespace stillwake::emulation {

struct ProcessIdentity {
  pid_t number = 0;
  std::uint64_t started = 0; ///< in clock ticks since boot, as /proc says

  static ProcessIdentity own();
  /// A process that has exited but was not waited for is not alive: its memory is gone.
  bool alive() const;
};

} // namespace stillwake::emulation
