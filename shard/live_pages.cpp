// SPDX-License-Identifier: Apache-2.0
#include "shard/live_pages.h"

#include <algorithm>

namespace stillwake {
namespace {

// Pieces are cut at the first legal place at or after every multiple of this: small enough that several threads share
// the pinning, and tied to the address, so that a change in one place moves no cut elsewhere.
constexpr Pages kPieceStep{32};

PageRange pages_touched(Bytes offset, Bytes size) {
  const Pages first = pages_below(offset);
  return {first, pages_holding(offset + size) - first};
}

// Adds pages that belong together to the plan: `range` starts no earlier than the last one did.
void add_together(LivePages& live, PageRange& atom, PageRange range) {
  if (!atom.empty() && range.first < atom.end()) {
    atom.count = std::max(atom.end(), range.end()) - atom.first;
    return;
  }
  if (!atom.empty()) {
    live.runs.push_back(atom); // atoms for now; merged when all are known
  }
  atom = range;
}

// Turns atoms (pages that one live range or one shared page ties together) into runs and pieces.
void merge_atoms(LivePages& live) {
  std::vector<PageRange> atoms;
  atoms.swap(live.runs);
  for (const PageRange& atom : atoms) {
    live.count += atom.count;
    const bool neighbour = !live.runs.empty() && live.runs.back().end() == atom.first;
    if (neighbour) {
      live.runs.back().count += atom.count;
    } else {
      live.runs.push_back(atom);
    }
    const std::uint64_t step = kPieceStep.count();
    const bool same_step = neighbour && (&atom - 1)->first.count() / step == atom.first.count() / step;
    if (same_step) {
      live.pieces.back().count += atom.count;
    } else {
      live.pieces.push_back(atom);
    }
  }
}

} // namespace

Result<OwnerRanges> sort_owner_ranges(DeviceAddress base, Bytes size, const std::vector<BlockLiveRanges>& told) {
  OwnerRanges sorted;
  for (const BlockLiveRanges& block : told) {
    if (block.block == nullptr) {
      return failure(ErrorCode::kInvalidArgument, "the owner gave live ranges of a null block; name a block by the "
                                                  "address that allocate returned");
    }
    const DeviceAddress address(block.block);
    if (address < base || base + size <= address) {
      continue;
    }
    // A block that is named more than once has all that was told of it.
    std::vector<LiveRange>& ranges = sorted[(address - base).count()];
    ranges.insert(ranges.end(), block.ranges.begin(), block.ranges.end());
  }
  for (auto& [block, ranges] : sorted) {
    std::sort(ranges.begin(), ranges.end(), [](const LiveRange& a, const LiveRange& b) { return a.offset < b.offset; });
  }
  return sorted;
}

Result<LivePages> find_live_pages(const std::vector<LiveBlock>& blocks, const OwnerRanges& told) {
  LivePages live;
  PageRange atom;
  std::size_t matched = 0;
  for (const LiveBlock& block : blocks) {
    const auto ranges = told.find(block.offset.count());
    if (ranges == told.end()) {
      add_together(live, atom, pages_touched(block.offset, block.size));
      continue;
    }
    ++matched;
    for (const LiveRange& range : ranges->second) {
      if (range.offset > block.size || range.size > block.size - range.offset) {
        return failure(ErrorCode::kInvalidArgument,
                       "the owner says that bytes " + std::to_string(range.offset.count()) + " to " +
                           std::to_string((range.offset + range.size).count()) + " of a block of " +
                           std::to_string(block.size.count()) + " bytes are live; a range must end within its block");
      }
      if (range.size > Bytes(0)) {
        add_together(live, atom, pages_touched(block.offset + range.offset, range.size));
      }
    }
  }
  if (matched != told.size()) {
    return failure(ErrorCode::kInvalidArgument, "the owner gave live ranges of " + std::to_string(told.size()) +
                                                    " blocks, of which " + std::to_string(told.size() - matched) +
                                                    " are no live blocks; name a block by the address that "
                                                    "allocate returned");
  }
  if (!atom.empty()) {
    live.runs.push_back(atom);
  }
  merge_atoms(live);
  return live;
}

std::vector<MappedRun> find_mapped_runs(const std::vector<LiveBlock>& blocks) {
  std::vector<MappedRun> runs;
  for (const LiveBlock& block : blocks) {
    const PageRange pages = pages_touched(block.offset, block.size);
    if (block.kind == BlockKind::kOneHandle || runs.empty() || runs.back().kind == BlockKind::kOneHandle ||
        runs.back().pages.end() < pages.first) {
      runs.push_back({pages, block.kind});
      continue;
    }
    PageRange& last = runs.back().pages;
    last.count = std::max(last.end(), pages.end()) - last.first;
  }
  return runs;
}

} // namespace stillwake
