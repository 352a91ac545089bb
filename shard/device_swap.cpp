// SPDX-License-Identifier: Apache-2.0
#include "shard/device_swap.h"

#include <algorithm>

namespace stillwake {
namespace {

// A batch is large enough that the bus does not notice its end, and small enough that the other direction starts early.
constexpr Pages kBatch{64};

} // namespace

DeviceSwap::DeviceSwap(Device& device, std::vector<ShardCore*> outgoing, SavePlan* plan, std::vector<Incoming> incoming,
                       Bytes chunk)
    : device_(device), outgoing_(std::move(outgoing)), plan_(plan), incoming_(std::move(incoming)), chunk_(chunk),
      placed_(incoming_.size()) {
  Pages out;
  Pages in;
  for (ShardCore* core : outgoing_) {
    out += pages_below(core->extents().mapped());
  }
  for (std::size_t i = 0; i < incoming_.size(); ++i) {
    waking_.emplace_back(*incoming_[i].core);
    for (const MappedRun& run : incoming_[i].missing) {
      in += run.pages.count;
    }
  }
  held_ = out;
  report_.verified = true;
  allowed_ = std::max(out, in) + kSwapMargin;
  skip_empty();
  make_batches();
}

DeviceSwap::~DeviceSwap() { stop_saving(); }

void DeviceSwap::skip_empty() {
  while (cursor_.shard < incoming_.size() && cursor_.run == incoming_[cursor_.shard].missing.size()) {
    ++cursor_.shard;
    cursor_.run = 0;
  }
}

void DeviceSwap::make_batches() {
  std::size_t task = 0;
  for (std::size_t i = 0; i < outgoing_.size(); ++i) {
    Pages in_batch = kBatch; // the first extent of a shard opens a batch
    for (const Extent& extent : outgoing_[i]->extents().extents()) {
      if (in_batch >= kBatch) {
        batches_.push_back({i, 0, task, 0});
        in_batch = Pages(0);
      }
      Batch& batch = batches_.back();
      ++batch.extents;
      in_batch += extent.pages.count;
      while (plan_ != nullptr && task < plan_->tasks.size() && plan_->owners[task] == outgoing_[i] &&
             plan_->tasks[task].page < extent.pages.end()) {
        ++task;
        ++batch.tasks;
      }
    }
  }
  if (plan_ != nullptr) {
    STILLWAKE_CHECK_EQ(task, plan_->tasks.size()); // every live page lies in an extent
  }
}

void DeviceSwap::save_batches() {
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    {
      std::lock_guard lock(mutex_);
      if (stop_) {
        return;
      }
    }
    const Batch& batch = batches_[i];
    Result<SaveReport> saved = SaveReport();
    if (batch.tasks > 0) {
      saved = plan_->engine->save(std::span(plan_->tasks).subspan(batch.first_task, batch.tasks));
    }
    std::lock_guard lock(mutex_);
    if (!saved) {
      save_error_ = std::move(saved).error();
      changed_.notify_all();
      return;
    }
    report_.copies += saved->copies;
    saved_ = i + 1;
    changed_.notify_all();
  }
}

void DeviceSwap::stop_saving() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (saver_.joinable()) {
    saver_.join();
  }
}

Result<std::optional<std::size_t>> DeviceSwap::next_saved() {
  if (taken_over_ == batches_.size()) {
    return std::optional<std::size_t>();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return saved_ > taken_over_ || save_error_; });
  if (saved_ > taken_over_) {
    return std::optional<std::size_t>(taken_over_);
  }
  return failure(*save_error_);
}

Result<void> DeviceSwap::take_fresh() {
  Pages in;
  for (const Incoming& incoming : incoming_) {
    for (const MappedRun& run : incoming.missing) {
      in += run.pages.count;
    }
  }
  // What the incoming set needs beyond the outgoing one must be there; the margin only makes it faster.
  const Pages needed = in > held_ ? in - held_ : Pages(0);
  const Pages margin = std::min(kSwapMargin, in - needed);
  for (const auto& [pages, must] : {std::pair(needed, true), std::pair(margin, false)}) {
    if (pages == Pages(0)) {
      continue;
    }
    auto handles = take_pages(device_, pages);
    if (!handles && (must || handles.error().code != ErrorCode::kOutOfDeviceMemory)) {
      return failure(std::move(handles).error());
    }
    if (handles) {
      held_ += pages;
      for (Physical& handle : *handles) {
        pool_.put(std::move(handle));
      }
    }
  }
  return {};
}

Result<void> DeviceSwap::unmap_batch(const Batch& batch) {
  ShardCore& core = *outgoing_[batch.shard];
  if (plan_ != nullptr) {
    take_over(std::span<const SaveTask>(plan_->tasks).subspan(batch.first_task, batch.tasks),
              std::span<ShardCore* const>(plan_->owners).subspan(batch.first_task, batch.tasks), true, report_);
  }
  for (std::size_t i = 0; i < batch.extents; ++i) {
    auto handle = core.extents().detach_first();
    STILLWAKE_TRY(handle);
    unmapped_.push_back({&core, handle->first});
    pool_.put(std::move(handle->second));
  }
  return {};
}

Result<Physical> DeviceSwap::handle_for(Pages most, BlockKind kind) {
  const bool whole = kind == BlockKind::kOneHandle;
  Physical handle = whole ? pool_.take_exactly(most) : pool_.take_at_most(most);
  if (handle || pool_.empty()) {
    return handle;
  }
  // Every handle in hand is too large. A new one of the right size must fit into what is allowed.
  const Pages wanted = whole ? most : std::min(most, kLargestGrowth);
  if (held_ - pool_.pages() + wanted > allowed_) {
    return Physical(); // it will fit once more of the outgoing set has left
  }
  while (true) {
    if (held_ + wanted <= allowed_) {
      auto made = Physical::create(device_, wanted);
      const bool is_full = !made && made.error().code == ErrorCode::kOutOfDeviceMemory;
      if (!is_full || pool_.empty()) {
        STILLWAKE_TRY(made);
        held_ += wanted;
        return made;
      }
    }
    Physical surplus = pool_.take_smallest();
    const Pages pages = surplus.pages();
    STILLWAKE_TRY(surplus.release());
    held_ -= pages;
  }
}

Result<void> DeviceSwap::fill() {
  while (!is_filled()) {
    Incoming& incoming = incoming_[cursor_.shard];
    const MappedRun& run = incoming.missing[cursor_.run];
    const Pages first = run.pages.first + cursor_.done;
    std::vector<Physical> handles;
    Pages placed;
    while (cursor_.done + placed < run.pages.count) {
      auto handle = handle_for(run.pages.count - cursor_.done - placed, run.kind);
      STILLWAKE_TRY(handle);
      if (!*handle) {
        break;
      }
      placed += handle->pages();
      handles.push_back(std::move(*handle));
    }
    if (placed == Pages(0)) {
      return {}; // nothing in hand: the next batch brings more
    }
    auto extents = incoming.core->extents().place(first, std::move(handles));
    STILLWAKE_TRY(extents);
    for (Extent& extent : *extents) {
      placed_[cursor_.shard].push_back(std::move(extent));
    }
    report_.mapped += Bytes(placed);
    STILLWAKE_TRY(start_restore(cursor_.shard, {first, placed}));
    cursor_.done += placed;
    if (cursor_.done == run.pages.count) {
      ++cursor_.run;
      cursor_.done = Pages(0);
      skip_empty();
    }
  }
  return {};
}

Result<void> DeviceSwap::start_restore(std::size_t shard, PageRange pages) {
  RestorePlan plan;
  add_to_plan(plan, waking_[shard], static_cast<std::uint32_t>(shard), {pages});
  auto restore = incoming_[shard].core->engine().restore(std::move(plan.tasks), chunk_);
  STILLWAKE_TRY(restore);
  report_.copied += plan.copied;
  report_.verified = report_.verified && plan.is_verified;
  restore_copies_ += (*restore)->copies();
  jobs_.push_back({&device_, std::move(*restore), std::move(plan.owners)});
  return {};
}

Result<void> DeviceSwap::run() {
  STILLWAKE_TRY(take_fresh());
  saver_ = std::thread([this] { save_batches(); });
  STILLWAKE_TRY(fill());
  while (true) {
    auto saved = next_saved();
    STILLWAKE_TRY(saved);
    if (!*saved) {
      break;
    }
    ++taken_over_;
    STILLWAKE_TRY(unmap_batch(batches_[**saved]));
    STILLWAKE_TRY(fill());
  }
  while (!is_filled()) {
    // All that left is placed; the rest is made to measure.
    const MappedRun& run = incoming_[cursor_.shard].missing[cursor_.run];
    auto handles = take_pages(device_, run.pages.count - cursor_.done);
    STILLWAKE_TRY(handles);
    for (Physical& handle : *handles) {
      held_ += handle.pages();
      pool_.put(std::move(handle));
    }
    STILLWAKE_TRY(fill());
  }
  return await_verdict();
}

Result<void> DeviceSwap::await_verdict() {
  for (WakingJob& job : jobs_) {
    auto mismatched = job.restore->finish();
    STILLWAKE_TRY(mismatched);
    const ShardCore& core = *waking_[job.owners.front().shard].core;
    report_.verified = report_.verified && core.engine().has_kernels();
    if (!mismatched->empty()) {
      return failure(ErrorCode::kCorrupted,
                     "shard '" + core.name() + "' came in with " + std::to_string(mismatched->size()) +
                         " pages that are not what was saved, page " +
                         std::to_string(job.owners[mismatched->front()].page.count()) + " the first of them");
    }
  }
  return {};
}

void DeviceSwap::conclude(Report& report) {
  while (!pool_.empty()) {
    Physical surplus = pool_.take_smallest();
    const Bytes size(surplus.pages());
    if (auto released = surplus.release(); !released) {
      report.leftovers.push_back(
          {outgoing_.empty() ? "" : outgoing_.front()->name(), nullptr, size, released.error().describe()});
      report.not_freed += size;
      // Kept by a shard, so that its next sleep tries again.
      std::vector<Physical> kept;
      kept.push_back(std::move(surplus));
      (outgoing_.empty() ? incoming_.front().core : outgoing_.front())->extents().keep_unreleased(std::move(kept));
    }
  }
  for (std::size_t i = 0; i < incoming_.size(); ++i) {
    incoming_[i].core->extents().add(std::move(placed_[i]));
  }
  report.copied += report_.copied;
  report.copies += report_.copies + restore_copies_;
  report.unchanged += report_.unchanged;
  report.trusted += report_.trusted;
  report.zero += report_.zero;
  report.mapped += report_.mapped;
  report.verified = report.verified && report_.verified;
}

Result<void> DeviceSwap::roll_back() {
  stop_saving();
  jobs_.clear(); // waits for what is on its way in
  if (plan_ != nullptr) {
    // What was (or may have been) copied over an older backing, but not taken over, describes nothing any more.
    const std::size_t first = taken_over_ == batches_.size() ? plan_->tasks.size() : batches_[taken_over_].first_task;
    take_over(std::span<const SaveTask>(plan_->tasks).subspan(first),
              std::span<ShardCore* const>(plan_->owners).subspan(first), false, report_);
  }
  for (std::size_t i = 0; i < incoming_.size(); ++i) {
    for (Extent& extent : placed_[i]) {
      if (auto unmapped = extent.mapping.unmap(); !unmapped) {
        std::vector<Extent> kept;
        kept.push_back(std::move(extent));
        incoming_[i].core->extents().add(std::move(kept)); // stays behind its addresses; the next wake uses it
        continue;
      }
      pool_.put(std::move(extent.physical));
    }
    placed_[i].clear();
  }
  RestorePlan plan;
  std::vector<WakingShard> shards;
  for (ShardCore* core : outgoing_) {
    shards.emplace_back(*core);
  }
  for (const Unmapped& gone : unmapped_) {
    Physical handle = pool_.take_exactly(gone.pages.count);
    std::vector<Physical> handles;
    if (handle) {
      handles.push_back(std::move(handle));
    } else {
      while (!pool_.empty()) {
        STILLWAKE_TRY(pool_.take_smallest().release());
      }
      auto made = take_pages(device_, gone.pages.count);
      STILLWAKE_TRY(made);
      handles = std::move(*made);
    }
    auto extents = gone.core->extents().place(gone.pages.first, std::move(handles));
    STILLWAKE_TRY(extents);
    gone.core->extents().add(std::move(*extents));
    const auto index = static_cast<std::size_t>(
        std::distance(outgoing_.begin(), std::find(outgoing_.begin(), outgoing_.end(), gone.core)));
    add_to_plan(plan, shards[index], static_cast<std::uint32_t>(index), {gone.pages});
  }
  unmapped_.clear();
  while (!pool_.empty()) {
    STILLWAKE_TRY(pool_.take_smallest().release());
  }
  if (plan.tasks.empty()) {
    return {};
  }
  auto restore = outgoing_.front()->engine().restore(std::move(plan.tasks), chunk_);
  STILLWAKE_TRY(restore);
  auto mismatched = (*restore)->finish();
  STILLWAKE_TRY(mismatched);
  if (!mismatched->empty()) {
    return failure(ErrorCode::kCorrupted, "the outgoing set could not be put back as it was: " +
                                              std::to_string(mismatched->size()) + " pages differ");
  }
  return {};
}

} // namespace stillwake
