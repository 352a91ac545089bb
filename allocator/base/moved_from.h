// SPDX-License-Identifier: Apache-2.0
// What a call on an object that was moved from does. One that answers a Result says kInvalidArgument; any other has no
// error to answer and ends the process with a sentence. Destroying the object and assigning to it are always right.
#pragma once

#include "allocator/base/error.h"

namespace stillwake {

/// The error of a call that answers a Result; `type` is the object's, "Shard" for instance.
Error moved_from(const char* type);
[[noreturn]] void abort_moved_from(const char* type);

/// What the object owns, for a call that cannot fail.
template <class Pointer> auto& not_moved_from(const Pointer& owned, const char* type) {
  if (!owned) [[unlikely]] {
    abort_moved_from(type);
  }
  return *owned;
}

} // namespace stillwake
