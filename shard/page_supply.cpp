// SPDX-License-Identifier: Apache-2.0
#include "shard/page_supply.h"

#include <algorithm>
#include <iterator>

namespace stillwake {

PageSupply::PageSupply(ShardCore& core, const std::vector<MappedRun>& missing)
    : core_(core), clock_(*core.device().table().clock) {
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
  auto handles = take(piece.run);
  STILLWAKE_TRY(handles);
  STILLWAKE_TRY(place(piece.run, std::move(*handles), extents));
  piece.is_there = true;
  ++supplied_;
  return {};
}

Result<void> PageSupply::supply_rest(std::vector<Extent>& extents) {
  const std::vector<MappedRun> runs = rest();
  std::vector<std::vector<Physical>> handles;
  for (const MappedRun& run : runs) {
    auto taken = take(run);
    STILLWAKE_TRY(taken);
    handles.push_back(std::move(*taken));
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    STILLWAKE_TRY(place(runs[i], std::move(handles[i]), extents));
  }
  for (Piece& piece : pieces_) {
    piece.is_there = true;
  }
  supplied_ = pieces_.size();
  return {};
}

std::vector<MappedRun> PageSupply::rest() const {
  std::vector<MappedRun> runs;
  for (const Piece& piece : pieces_) {
    if (piece.is_there) {
      continue;
    }
    const bool goes_on = !runs.empty() && runs.back().kind == BlockKind::kShared &&
                         piece.run.kind == BlockKind::kShared && runs.back().pages.end() == piece.run.pages.first;
    if (goes_on) {
      runs.back().pages.count += piece.run.pages.count;
    } else {
      runs.push_back(piece.run);
    }
  }
  return runs;
}

Result<std::vector<Physical>> PageSupply::take(const MappedRun& run) {
  const TimePoint begin = clock_.now();
  auto handles = take_run(core_.device(), run.pages.count, run.kind);
  creating_ += clock_.now() - begin;
  return handles;
}

Result<void> PageSupply::place(const MappedRun& run, std::vector<Physical> handles, std::vector<Extent>& extents) {
  const TimePoint begin = clock_.now();
  auto placed = core_.extents().place(run.pages.first, std::move(handles));
  STILLWAKE_TRY(placed);
  mapping_ += clock_.now() - begin;
  std::move(placed->begin(), placed->end(), std::back_inserter(extents));
  pages_ += run.pages.count;
  return {};
}

} // namespace stillwake
