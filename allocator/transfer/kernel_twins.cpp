// SPDX-License-Identifier: Apache-2.0
#include "allocator/transfer/kernel_twins.h"

#include "allocator/transfer/page_digest_launch.h"

#include <array>
#include <cstddef>

namespace stillwake {
namespace {

// Strips are absorbed side by side, so that memory is read in long stretches and the states stay in the first cache.
constexpr std::uint32_t kSideBySide = 64;
static_assert(page_hash::kStrips % kSideBySide == 0);

struct Strips {
  std::array<page_hash::LaneState, kSideBySide> lane_0;
  std::array<page_hash::LaneState, kSideBySide> lane_1;
};

void page_digest_twin(const KernelLaunch& launch) {
  const auto& parameters = *static_cast<const PageDigestLaunch*>(launch.parameters[0]);
  auto* digests = static_cast<PageDigest*>(DeviceAddress(parameters.digests).pointer());
  const std::uint32_t blocks_pages = launch.grid[0] / PageDigestLaunch::kBlocksPerPage;
  for (std::uint32_t page = 0; page < parameters.pages && page < blocks_pages; ++page) {
    const void* content = DeviceAddress(page_hash::page_address(parameters, page)).pointer();
    const PageDigest digest = digest_of_page(content, parameters.seed);
    // Added, as the device's blocks do: whoever forgets to clear sees it here too.
    digests[page].lane[0] += digest.lane[0];
    digests[page].lane[1] += digest.lane[1];
    digests[page].any_bits |= digest.any_bits;
  }
}

} // namespace

PageDigest digest_of_page(const void* page, std::uint64_t seed) {
  const auto* words = static_cast<const std::uint32_t*>(page);
  PageDigest digest;
  std::uint32_t any_low = 0;
  std::uint32_t any_high = 0;
  Strips strips;
  for (std::uint32_t first = 0; first < page_hash::kStrips; first += kSideBySide) {
    strips.lane_0.fill(page_hash::begin(seed, 0));
    strips.lane_1.fill(page_hash::begin(seed, 1));
    for (std::uint32_t unit = 0; unit < page_hash::kUnitsPerStrip; ++unit) {
      const std::uint32_t* at = words + (static_cast<std::size_t>(unit) * page_hash::kStrips + first) * 4;
      for (std::uint32_t strip = 0; strip < kSideBySide; ++strip, at += 4) {
        page_hash::absorb_0(strips.lane_0[strip], at[0], at[1]);
        page_hash::absorb_1(strips.lane_1[strip], at[0], at[1]);
        page_hash::absorb_0(strips.lane_0[strip], at[2], at[3]);
        page_hash::absorb_1(strips.lane_1[strip], at[2], at[3]);
        any_low |= at[0] | at[2];
        any_high |= at[1] | at[3];
      }
    }
    for (std::uint32_t strip = 0; strip < kSideBySide; ++strip) {
      digest.lane[0] += page_hash::finalise(strips.lane_0[strip], first + strip);
      digest.lane[1] += page_hash::finalise(strips.lane_1[strip], first + strip);
    }
  }
  digest.any_bits = static_cast<std::uint64_t>(any_high) << 32 | any_low;
  return digest;
}

void register_kernel_twins(Emulation& emulation) {
  emulation.register_kernel(PageDigestLaunch::kKernel, page_digest_twin, {sizeof(PageDigestLaunch)});
}

} // namespace stillwake
