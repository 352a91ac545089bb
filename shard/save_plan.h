// SPDX-License-Identifier: Apache-2.0
// A SavePlan is the pages of one device that a sleep has to keep, in the order in which they travel, and what became of
// them. The counterpart of a RestorePlan.
#pragma once

#include "shard/device_groups.h"
#include "shard/live_pages.h"
#include "shard/report.h"
#include "shard/shard_core.h"

#include <span>

namespace stillwake {

struct SavePlan {
  Device* device = nullptr;
  TransferEngine* engine = nullptr;
  std::vector<SaveTask> tasks;
  std::vector<ShardCore*> owners; ///< by task
};

/// Adds the pages of `pieces` to the plan of the shard's device, which is made when it is missing.
void add_to_plan(std::vector<SavePlan>& plans, ShardCore& core, const std::vector<PageRange>& pieces,
                 PinningJob* pinning);

/// Writes into the page tables what a save has done to its tasks. `saved` false: what it left is unknown, so the
/// backing of all of them is forgotten.
void take_over(std::span<const SaveTask> tasks, std::span<ShardCore* const> owners, bool saved, Report& report);

} // namespace stillwake
