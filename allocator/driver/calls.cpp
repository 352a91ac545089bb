// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/calls.h"

namespace stillwake {

const char* to_string(CallId call) {
  switch (call) {
#define STILLWAKE_ROW(call, version)                                                                                   \
  case CallId::call: return #call;
    STILLWAKE_DRIVER_CALLS(STILLWAKE_ROW, STILLWAKE_ROW)
#undef STILLWAKE_ROW
  case CallId::kCount: break;
  }
  return "unknown call";
}

} // namespace stillwake
