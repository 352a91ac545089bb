// SPDX-License-Identifier: Apache-2.0
#include "shard/restore_plan.h"

#include <algorithm>

namespace stillwake {
namespace {

// The number of the pinned piece that holds the page; pieces are in address order.
std::uint32_t piece_of(const std::vector<PageRange>& pieces, Pages page) {
  auto next = std::upper_bound(pieces.begin(), pieces.end(), page,
                               [](Pages wanted, const PageRange& piece) { return wanted < piece.first; });
  STILLWAKE_CHECK(next != pieces.begin() && std::prev(next)->contains(page));
  return static_cast<std::uint32_t>(std::distance(pieces.begin(), next));
}

} // namespace

void add_to_plan(RestorePlan& plan, WakingShard& shard, std::uint32_t shard_index,
                 const std::vector<PageRange>& pages) {
  ShardCore& core = *shard.core;
  const std::vector<PageRange> pieces = core.mirror().pieces();
  // Mirrors of two shards may lie next to each other, and so may their reservations: numbers of pieces are kept apart.
  const std::uint32_t numbers_of_shard = shard_index << 20;
  for (const PageRange& range : pages) {
    if (shard.task_of_page.size() < range.end().index()) {
      shard.task_of_page.resize(range.end().index(), kNoTask);
    }
    for (Pages page = range.first; page < range.end(); ++page) {
      std::uint32_t& slot = shard.task_of_page[page.index()];
      if (slot != kNoTask) {
        continue;
      }
      slot = static_cast<std::uint32_t>(plan.tasks.size());
      const PageEntry& entry = core.pages()[page];
      RestoreTask task;
      task.device = core.reservation().at(page);
      task.encoding = entry.encoding;
      task.expected = entry.digest;
      if (entry.encoding == PageEncoding::kRaw) {
        task.host = core.mirror().at(page);
        task.piece = numbers_of_shard + piece_of(pieces, page);
        plan.copied += kPageBytes;
        plan.is_verified = plan.is_verified && entry.digest.has_value();
      }
      plan.tasks.push_back(task);
      plan.owners.push_back({shard_index, page});
    }
  }
}

std::vector<PageRange> kept_pages_by_piece(ShardCore& core, const std::vector<MappedRun>& runs) {
  std::vector<PageRange> kept;
  auto run = runs.begin();
  for (const PageRange& piece : core.mirror().pieces()) {
    bool open = false;
    for (Pages page = piece.first; page < piece.end(); ++page) {
      while (run != runs.end() && run->pages.end() <= page) {
        ++run;
      }
      const bool wanted =
          run != runs.end() && run->pages.contains(page) && core.pages()[page].encoding != PageEncoding::kNone;
      if (wanted && open) {
        kept.back().count += Pages(1);
      } else if (wanted) {
        kept.push_back({page, Pages(1)});
      }
      open = wanted;
    }
  }
  return kept;
}

} // namespace stillwake
