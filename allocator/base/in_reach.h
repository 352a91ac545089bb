// SPDX-License-Identifier: Apache-2.0
// Whether the driver can be reached at all is asked before any lock: in a child made by fork a lock may be held by a
// thread that is not there.
#pragma once

#include "process_exit.h"
#include "result.h"

namespace stillwake {

inline Result<void> in_reach() {
  if (driver_is_out_of_reach()) {
    return failure(ErrorCode::kLost,
                   "this process is exiting, or was forked from the one that opened the driver; start "
                   "processes anew (spawn instead of fork)");
  }
  return {};
}

} // namespace stillwake
