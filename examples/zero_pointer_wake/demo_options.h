// SPDX-License-Identifier: Apache-2.0
// What the command line of zero_pointer_wake asks for.
#pragma once

#include <optional>
#include <string>

namespace example {

struct DemoOptions {
  std::string weights;
  int device = 0;
  bool emulated = false;
  int cycles = 1;
  int copies = 1;
  int pinning_threads = 0; ///< 0: the library chooses
  bool change = false;
  bool prepare = false;
  bool all = false;
};

/// Reads the command line. Unset after --help (status 0) and after a wrong option (a sentence on stderr, status 2).
std::optional<DemoOptions> read_options(int count, char** words, int& status);

} // namespace example
