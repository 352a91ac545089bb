// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/heap_memory.h"

#include <cstdio>
#include <cstdlib>

namespace stillwake::detail {

void end_without_heap(const char* doing) {
  std::fprintf(stderr,
               "stillwake: %s: the heap of this process (operator new) has no memory left; what is half done could be "
               "neither finished nor undone\n",
               doing);
  std::fflush(stderr);
  std::abort();
}

} // namespace stillwake::detail
