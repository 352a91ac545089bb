// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/hexadecimal.h"

#include <cstdio>

namespace stillwake {

std::string hexadecimal(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

} // namespace stillwake
