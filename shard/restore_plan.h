// SPDX-License-Identifier: Apache-2.0
// A RestorePlan is the order in which the pages of one device come back, and what each of them needs.
#pragma once

#include "shard/device_groups.h"
#include "shard/waking.h"

namespace stillwake {

struct RestorePlan {
  Device* device = nullptr;
  std::vector<RestoreTask> tasks;
  std::vector<TaskOwner> owners; ///< by task
  Bytes copied;                  ///< of raw pages
  bool is_verified = true;       ///< every raw page has a digest to be compared with
};

/// Adds pages of a shard to the plan of its device. Pages that have a task already (task_of_page) are passed over, so
/// what is wanted first is added first.
void add_to_plan(RestorePlan& plan, WakingShard& shard, std::uint32_t shard_index, const std::vector<PageRange>& pages);

/// The pages of `runs` that the last sleep has kept, cut as the mirror's pieces are: what stays pinned after a wake.
/// Pages of zeros are among them: there is nothing of theirs in the mirror, but there will be when they change.
std::vector<PageRange> kept_pages_by_piece(ShardCore& core, const std::vector<MappedRun>& runs);

} // namespace stillwake
