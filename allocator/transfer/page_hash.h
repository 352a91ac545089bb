// SPDX-License-Identifier: Apache-2.0
// The page hash: the one definition of a PageDigest, compiled for the device and for its CPU twin alike.
//
// A page is 131072 units of 16 bytes, two 64-bit words each. Strip s of 1024 absorbs the units s, s + 1024, s + 2048,
// ... in that order, word by word, once into each lane. A lane's state is two 32-bit halves; a step brings the word in
// and runs two Feistel rounds over it, so it is a bijection of the state for every word and of the word for every
// state: a change of one word always shows. A round multiplies 32 x 32 -> 64 bits and folds the product: every single
// bit spreads upwards and downwards at once, and no pair of sign bits cancels. Each strip's value is finalised together
// with its index BEFORE the strips are summed mod 2^64, so that the sum may be taken in any order while strips cannot
// trade places. See docs/design/fingerprints.md.
#pragma once

#include "allocator/transfer/page_digest.h"

#include <cstdint>

#if defined(__CUDACC__)
#define STILLWAKE_HASH_FUNCTION __host__ __device__ __forceinline__
#else
#define STILLWAKE_HASH_FUNCTION inline
#endif

namespace stillwake::page_hash {

constexpr std::uint32_t kStrips = 1024;       ///< a strip is what one thread of the device absorbs
constexpr std::uint32_t kUnitsPerStrip = 128; ///< units of 16 bytes
constexpr std::uint64_t kPageBytesOfHash = kStrips * kUnitsPerStrip * 16ull;
static_assert(kPageBytesOfHash == 2ull * 1024 * 1024);

// Multipliers of the rounds, two a lane: the first 32 fraction bits of the square roots of 2, 3, 11 and 19, all odd.
constexpr std::uint32_t kRoot2 = 0x6a09e667u;
constexpr std::uint32_t kRoot3 = 0xbb67ae85u;
constexpr std::uint32_t kRoot11 = 0x510e527fu;
constexpr std::uint32_t kRoot19 = 0x5be0cd19u;
/// 2^64 divided by the golden ratio, made odd: sets lanes and strips apart.
constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;

/// The state of one lane of one strip.
struct LaneState {
  std::uint32_t low;
  std::uint32_t high;
};

/// A bijection of 64-bit values in which every input bit reaches every output bit (Stafford's thirteenth constants).
STILLWAKE_HASH_FUNCTION std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

STILLWAKE_HASH_FUNCTION std::uint32_t fold(std::uint32_t half, std::uint32_t multiplier) {
  const std::uint64_t product = static_cast<std::uint64_t>(half) * multiplier;
  return static_cast<std::uint32_t>(product) ^ static_cast<std::uint32_t>(product >> 32);
}

/// What every strip's lane begins with.
STILLWAKE_HASH_FUNCTION LaneState begin(std::uint64_t seed, std::uint32_t lane) {
  const std::uint64_t value = mix(seed + (lane + 1) * kGolden);
  return {static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32)};
}

/// Lane 0 brings a word in by exclusive or, and stirs the low half first.
STILLWAKE_HASH_FUNCTION void absorb_0(LaneState& lane, std::uint32_t low, std::uint32_t high) {
  lane.low ^= low;
  lane.high ^= high;
  lane.high ^= fold(lane.low, kRoot2);
  lane.low ^= fold(lane.high, kRoot3);
}

/// Lane 1 brings it in by addition, crosswise, and stirs with other multipliers.
STILLWAKE_HASH_FUNCTION void absorb_1(LaneState& lane, std::uint32_t low, std::uint32_t high) {
  lane.low += high;
  lane.high += low;
  lane.high ^= fold(lane.low, kRoot11);
  lane.low ^= fold(lane.high, kRoot19);
}

/// What a strip adds to its lane's sum.
STILLWAKE_HASH_FUNCTION std::uint64_t finalise(LaneState lane, std::uint32_t strip) {
  const std::uint64_t state = static_cast<std::uint64_t>(lane.high) << 32 | lane.low;
  return mix(state ^ strip * kGolden);
}

} // namespace stillwake::page_hash
