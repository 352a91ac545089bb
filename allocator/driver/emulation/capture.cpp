// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/capture.h"

#include <algorithm>

namespace stillwake::emulation {

bool Capture::joined() const {
  std::vector<char> before_origin(nodes.size(), 0);
  for (int node : origin->frontier) {
    before_origin[static_cast<std::size_t>(node)] = 1;
  }
  // A node comes after nodes of lower places only.
  for (std::size_t node = nodes.size(); node-- > 0;) {
    if (before_origin[node] != 0) {
      for (int earlier : nodes[node].after) {
        before_origin[static_cast<std::size_t>(earlier)] = 1;
      }
    }
  }
  return std::all_of(before_origin.begin(), before_origin.end(), [](char one) { return one != 0; });
}

} // namespace stillwake::emulation
