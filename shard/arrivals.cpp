// SPDX-License-Identifier: Apache-2.0
#include "shard/arrivals.h"

#include <algorithm>

namespace stillwake {
namespace {

// Takes what `wanted` touches out of `runs`.
std::vector<MappedRun> take_out(std::vector<MappedRun>& runs, PageRange wanted) {
  std::vector<MappedRun> taken, left;
  for (const MappedRun& run : runs) {
    const bool whole = run.kind == BlockKind::kOneHandle;
    const Pages end = run.pages.end();
    const Pages from = std::max(run.pages.first, wanted.first), to = std::min(end, wanted.end());
    if (from >= to) {
      left.push_back(run);
    } else if (whole) {
      taken.push_back(run);
    } else {
      taken.push_back({{from, to - from}, run.kind});
      if (run.pages.first < from) {
        left.push_back({{run.pages.first, from - run.pages.first}, run.kind});
      }
      if (to < end) {
        left.push_back({{to, end - to}, run.kind});
      }
    }
  }
  runs = std::move(left);
  return taken;
}

} // namespace

std::vector<Arrival> order_arrivals(std::vector<std::vector<MappedRun>> missing,
                                    const std::vector<WantedPages>& wanted) {
  std::vector<Arrival> arrivals;
  for (const WantedPages& early : wanted) {
    for (const PageRange& pages : early.pages) {
      for (const MappedRun& run : take_out(missing[early.shard], pages)) {
        arrivals.push_back({early.shard, run});
      }
    }
  }
  for (std::size_t shard = 0; shard < missing.size(); ++shard) {
    for (const MappedRun& run : missing[shard]) {
      arrivals.push_back({shard, run});
    }
  }
  return arrivals;
}

} // namespace stillwake
