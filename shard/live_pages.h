// SPDX-License-Identifier: Apache-2.0
// LivePages says which pages of a shard a sleep must keep, from the blocks and from what their owner says is in use,
// and how they are cut into pieces for pinning: never inside a live range, so that a copy of one never spans two
// pieces.
#pragma once

#include "allocator/heap/heap_layer.h"
#include "shard/options.h"

#include <unordered_map>
#include <vector>

namespace stillwake {

struct LivePages {
  std::vector<PageRange> runs;   ///< maximal neighbouring live pages, in address order
  std::vector<PageRange> pieces; ///< the runs, cut at legal places near every 64 MiB
  Pages count;
};

/// By block offset; blocks that are absent are live as a whole.
using OwnerRanges = std::unordered_map<std::uint64_t, std::vector<LiveRange>>;

/// Sorts what an owner told by block. kInvalidArgument for a block outside of the reservation or a range outside of
/// its block, with the values. Blocks of other shards are left out: an owner may serve several.
[[nodiscard]] Result<OwnerRanges> sort_owner_ranges(DeviceAddress base, Bytes size,
                                                    const std::vector<BlockLiveRanges>& told);

/// `blocks` in address order. kInvalidArgument where a told range ends outside of its block.
[[nodiscard]] Result<LivePages> find_live_pages(const std::vector<LiveBlock>& blocks, const OwnerRanges& told);

/// Neighbouring pages that must be mapped as one piece of memory, or that may be cut freely.
struct MappedRun {
  PageRange pages;
  BlockKind kind = BlockKind::kShared;
};

/// The pages that blocks touch, whole, in address order: what a wake maps. One-handle blocks stand alone.
std::vector<MappedRun> find_mapped_runs(const std::vector<LiveBlock>& blocks);

} // namespace stillwake
