// SPDX-License-Identifier: Apache-2.0
// A Content is the words of one page, as tests make them.
#pragma once

#include "allocator/base/units.h"

#include <cstdint>
#include <random>
#include <vector>

namespace stillwake {

using Content = std::vector<std::uint64_t>;

inline Content zero_content() { return Content(kPageBytes.size() / sizeof(std::uint64_t), 0); }

inline Content random_content(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Content content = zero_content();
  for (std::uint64_t& word : content) {
    word = random();
  }
  return content;
}

} // namespace stillwake
