// SPDX-License-Identifier: Apache-2.0
// A PageDigest is what one pass over a page tells: two 64-bit lanes that each absorbed every word, and all words or-ed
// together. It guards against accident, not against an adversary. Defined over the data's layout, never over launch
// geometry.
#pragma once

#include <cstdint>

namespace stillwake {

struct PageDigest {
  std::uint64_t lane[2] = {0, 0};
  std::uint64_t any_bits = 0; ///< all 64-bit words of the page or-ed

  bool is_zero() const { return any_bits == 0; }
  /// Every 32-bit word has a zero low half: a bf16 tensor widened to FP32.
  bool low_halves_are_zero() const { return (any_bits & 0x0000ffff0000ffffull) == 0; }
  friend bool operator==(const PageDigest&, const PageDigest&) = default;
};

} // namespace stillwake
