// SPDX-License-Identifier: Apache-2.0
// Arrivals are the order in which the pages of a swap come in: what is wanted first, first, then the shards in their
// order.
#pragma once

#include "shard/live_pages.h"

namespace stillwake {

/// Pages of a shard that are wanted early.
struct WantedPages {
  std::size_t shard; ///< its place in the set
  std::vector<PageRange> pages;
};

/// Neighbouring pages that get their memory together.
struct Arrival {
  std::size_t shard;
  MappedRun run;
};

/// All pages of `missing` (by shard, in address order), each in one arrival. A run on one handle is never cut: it comes
/// as a whole with the first of its pages that is wanted.
std::vector<Arrival> order_arrivals(std::vector<std::vector<MappedRun>> missing,
                                    const std::vector<WantedPages>& wanted);

} // namespace stillwake
