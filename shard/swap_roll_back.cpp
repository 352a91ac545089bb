// SPDX-License-Identifier: Apache-2.0
// How a DeviceSwap is undone: the outgoing extents go back behind their addresses, on the same handles where those are
// still there, and get their content from the backing. Shard by shard, so that what one cannot have back costs no
// other.
#include "shard/device_swap.h"

#include <algorithm>

namespace stillwake {

// What was (or may have been) copied over an older backing, but not taken over, describes nothing any more.
void DeviceSwap::forget_unsaved() {
  if (plan_ == nullptr) {
    return;
  }
  const std::size_t first = taken_over_ == batches_.size() ? plan_->tasks.size() : batches_[taken_over_].first_task;
  take_over(std::span<const SaveTask>(plan_->tasks).subspan(first),
            std::span<ShardCore* const>(plan_->owners).subspan(first), false, report_);
}

void DeviceSwap::take_back_arrivals() {
  for (std::size_t i = 0; i < incoming_.size(); ++i) {
    for (Extent& extent : placed_[i]) {
      if (auto unmapped = extent.mapping.unmap(); !unmapped) {
        std::vector<Extent> kept;
        kept.push_back(std::move(extent));
        incoming_[i].core->extents().add(std::move(kept)); // stays behind its addresses; what comes next restores it
        continue;
      }
      pool_.put(std::move(extent.physical));
    }
    placed_[i].clear();
  }
}

std::vector<Unproven> DeviceSwap::roll_back() {
  stop_saving();
  jobs_.clear(); // waits for what is on its way in
  forget_unsaved();
  take_back_arrivals();
  for (Unmapped& gone : unmapped_) {
    gone.handle = pool_.take_exactly(gone.pages.count);
  }
  if (!pool_.empty()) {
    Report unasked; // a roll-back has none
    release_pool((outgoing_.empty() ? incoming_.front().core : outgoing_.front())->extents(), unasked);
  }
  std::vector<Unproven> unproven;
  for (std::size_t i = 0; i < outgoing_.size(); ++i) {
    if (auto back = put_back(i); !back) {
      unproven.push_back({outgoing_[i], std::move(back).error()});
    }
  }
  unmapped_.clear();
  return unproven;
}

Result<void> DeviceSwap::put_back(std::size_t shard) {
  ShardCore& core = *outgoing_[shard];
  RestorePlan plan;
  WakingShard restored(core);
  for (Unmapped& gone : unmapped_) {
    if (gone.shard != shard) {
      continue;
    }
    std::vector<Physical> handles;
    if (!gone.handle) {
      // One handle, as it was, if that can be had.
      if (auto one = Physical::create(device_, gone.pages.count)) {
        gone.handle = std::move(*one);
      }
    }
    if (gone.handle) {
      handles.push_back(std::move(gone.handle));
    } else {
      auto made = take_pages(device_, gone.pages.count);
      STILLWAKE_TRY(made);
      handles = std::move(*made);
    }
    auto extents = core.extents().place(gone.pages.first, std::move(handles));
    STILLWAKE_TRY(extents);
    core.extents().add(std::move(*extents));
    add_to_plan(plan, restored, static_cast<std::uint32_t>(shard), {gone.pages});
  }
  if (plan.tasks.empty()) {
    return {};
  }
  auto restore = core.engine().restore(std::move(plan.tasks), chunk_);
  STILLWAKE_TRY(restore);
  auto mismatched = (*restore)->finish();
  STILLWAKE_TRY(mismatched);
  if (!mismatched->empty()) {
    return failure(ErrorCode::kCorrupted, std::to_string(mismatched->size()) + " pages of it came back different");
  }
  return {};
}

} // namespace stillwake
