// SPDX-License-Identifier: Apache-2.0
// What one launch of the page digest kernel gets, by value: no upload, no memory of its own. Shared by the kernel, its
// CPU twin and the one who launches.
#pragma once

#include "allocator/transfer/page_hash.h"

#include <cstdint>

namespace stillwake {

struct PageDigestLaunch {
  static constexpr const char* kKernel = "stillwake_page_digest";
  static constexpr std::uint32_t kMaxRuns = 128;
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kBlocksPerPage = page_hash::kStrips / kThreads;

  std::uint64_t seed = 0;
  std::uint64_t digests = 0; ///< device address of one PageDigest a page, cleared before: blocks add to it
  std::uint32_t runs = 0;
  std::uint32_t pages = 0;                  ///< in all runs; blocks past them do nothing
  std::uint32_t first_page[kMaxRuns] = {};  ///< number of pages in the runs before: ascending from 0
  std::uint64_t run_address[kMaxRuns] = {}; ///< device address of the run's first page
};
static_assert(sizeof(PageDigestLaunch) <= 4096, "a kernel's parameters end at 4 KiB");

namespace page_hash {

/// The address of the launch's page with this number.
STILLWAKE_HASH_FUNCTION std::uint64_t page_address(const PageDigestLaunch& launch, std::uint32_t page) {
  std::uint32_t low = 0; // the run sought is in [low, high)
  std::uint32_t high = launch.runs;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (launch.first_page[middle] <= page) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return launch.run_address[low] + static_cast<std::uint64_t>(page - launch.first_page[low]) * kPageBytesOfHash;
}

} // namespace page_hash
} // namespace stillwake
