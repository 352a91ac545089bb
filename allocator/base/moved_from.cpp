// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/moved_from.h"

#include <cstdio>
#include <cstdlib>

namespace stillwake {

Error moved_from(const char* type) {
  Error error;
  error.code = ErrorCode::kInvalidArgument;
  error.message = std::string("this ") + type + " was moved from and owns nothing; use the one that it was moved to";
  return error;
}

void abort_moved_from(const char* type) {
  std::fprintf(stderr, "stillwake: %s\n", moved_from(type).message.c_str());
  std::fflush(stderr);
  std::abort();
}

} // namespace stillwake
