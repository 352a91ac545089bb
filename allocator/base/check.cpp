// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace stillwake::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& left,
                  const std::string& right) {
  std::fprintf(stderr, "stillwake: %s:%d: invariant broken: %s (%s against %s)\n", file, line, condition, left.c_str(),
               right.c_str());
  std::fflush(stderr);
  std::abort();
}

} // namespace stillwake::detail
