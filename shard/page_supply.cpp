// SPDX-License-Identifier: Apache-2.0
#include "shard/page_supply.h"

#include <algorithm>

namespace stillwake {

PageSupply::PageSupply(ShardCore& core, const std::vector<MappedRun>& missing) : core_(core) {
  for (const MappedRun& run : missing) {
    const Pages most = run.kind == BlockKind::kOneHandle ? run.pages.count : kLargestExtent;
    for (Pages first = run.pages.first; first < run.pages.end(); first += most) {
      pieces_.push_back({{{first, std::min(most, run.pages.end() - first)}, run.kind}});
    }
  }
}

Result<void> PageSupply::supply(Pages page, std::vector<Extent>& extents) {
  auto next = std::upper_bound(pieces_.begin(), pieces_.end(), page,
                               [](Pages wanted, const Piece& piece) { return wanted < piece.run.pages.first; });
  if (next == pieces_.begin() || std::prev(next)->is_there || !std::prev(next)->run.pages.contains(page)) {
    return {}; // there by now, or never missing
  }
  Piece& piece = *std::prev(next);
  const PageRange pages = piece.run.pages;
  Clock& clock = *core_.device().table().clock;
  const TimePoint begin = clock.now();
  auto handles = take_run(core_.device(), pages.count, piece.run.kind);
  STILLWAKE_TRY(handles);
  const TimePoint created = clock.now();
  auto placed = core_.extents().place(pages.first, std::move(*handles));
  STILLWAKE_TRY(placed);
  creating_ += created - begin;
  mapping_ += clock.now() - created;
  for (Extent& extent : *placed) {
    extents.push_back(std::move(extent));
  }
  piece.is_there = true;
  ++supplied_;
  pages_ += pages.count;
  return {};
}

} // namespace stillwake
