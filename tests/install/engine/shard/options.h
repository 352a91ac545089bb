// SPDX-License-Identifier: Apache-2.0
// A header of the outside program's own, at a path that Stillwake's sources have, too.
#pragma once

namespace engine {

struct Options {
  const char* model = "weights";
};

} // namespace engine
