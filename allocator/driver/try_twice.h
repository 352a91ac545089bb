// SPDX-License-Identifier: Apache-2.0
// What a destructor gives back is tried twice: nobody is left who could try again, and what stays is taken to the end
// of the process.
#pragma once

#include "allocator/driver/driver_table.h"

namespace stillwake {

/// Does `attempt`, a callable that returns Result<void> and can be repeated after a failure, at most twice. What fails
/// in the end is logged, and the answer is false. A lost context is asked only once: it answers with the failure of
/// earlier work, and the thing may be gone.
template <class Attempt> bool try_twice(const DriverTable& table, Attempt attempt) {
  Result<void> done = attempt();
  if (!done && done.error().code != ErrorCode::kLost) {
    done = attempt();
  }
  if (!done) {
    table.log(LogLevel::kError, done.error().describe().c_str());
  }
  return done.has_value();
}

} // namespace stillwake
