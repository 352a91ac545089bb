// SPDX-License-Identifier: Apache-2.0
#include "shard/device_swap.h"

#include <algorithm>

namespace stillwake {
namespace {

// A batch is large enough that the bus does not notice its end, and small enough that the other direction starts early.
constexpr Pages kBatch{64};

} // namespace

DeviceSwap::DeviceSwap(SwapSides sides, Bytes chunk)
    : device_(*sides.device), outgoing_(std::move(sides.outgoing)), plan_(sides.plan),
      incoming_(std::move(sides.incoming)), arrivals_(std::move(sides.arrivals)), chunk_(chunk),
      placed_(incoming_.size()) {
  for (ShardCore* core : outgoing_) {
    leaving_ += pages_below(core->extents().mapped());
  }
  for (const SwapSides::Incoming& incoming : incoming_) {
    waking_.emplace_back(*incoming.core);
  }
  for (const Arrival& arrival : arrivals_) {
    coming_ += arrival.run.pages.count;
  }
  held_ = leaving_;
  report_.verified = true;
  make_batches();
}

DeviceSwap::~DeviceSwap() { stop_saving(); }

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

void DeviceSwap::keep_fresh(std::vector<Physical> handles) {
  for (Physical& handle : handles) {
    held_ += handle.pages();
    pool_.put(std::move(handle));
  }
}

void DeviceSwap::drop_fresh() {
  while (!pool_.empty()) {
    held_ -= pool_.take_smallest().pages(); // released by its end
  }
}

Result<void> DeviceSwap::take_fresh() {
  // What the incoming set needs beyond the outgoing one must be there; the margin only makes it faster.
  lacking_ = coming_ > leaving_ ? coming_ - leaving_ : Pages(0);
  const Pages margin = std::min(kSwapMargin, coming_ - lacking_);
  if (lacking_ > Pages(0)) {
    auto needed = take_pages(device_, lacking_);
    STILLWAKE_TRY(needed);
    keep_fresh(std::move(*needed));
  }
  if (margin > Pages(0)) {
    auto more = take_pages(device_, margin);
    if (!more && more.error().code != ErrorCode::kOutOfDeviceMemory) {
      drop_fresh();
      return failure(std::move(more).error());
    }
    if (more) {
      keep_fresh(std::move(*more));
    }
  }
  return {};
}

Result<void> DeviceSwap::save_all() {
  save_batches();
  const std::lock_guard lock(mutex_);
  return save_error_ ? Result<void>(failure(*save_error_)) : Result<void>();
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
    unmapped_.push_back({batch.shard, handle->first, Physical()});
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
  const Pages allowed = std::max(leaving_, coming_) + kSwapMargin;
  const Pages wanted = whole ? most : std::min(most, kLargestGrowth);
  if (held_ - pool_.pages() + wanted > allowed) {
    return Physical(); // it will fit once more of the outgoing set has left
  }
  while (true) {
    if (held_ + wanted <= allowed) {
      auto made = Physical::create(device_, wanted);
      const bool is_full = !made && made.error().code == ErrorCode::kOutOfDeviceMemory;
      if (!is_full || pool_.empty()) {
        lacking_ = is_full ? std::max(lacking_, wanted) : lacking_;
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
    const auto& [shard, run] = arrivals_[next_];
    const Pages first = run.pages.first + done_;
    std::vector<Physical> handles;
    Pages placed;
    while (done_ + placed < run.pages.count) {
      auto handle = handle_for(run.pages.count - done_ - placed, run.kind);
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
    auto extents = incoming_[shard].core->extents().place(first, std::move(handles));
    STILLWAKE_TRY(extents);
    for (Extent& extent : *extents) {
      placed_[shard].push_back(std::move(extent));
    }
    report_.mapped += Bytes(placed);
    STILLWAKE_TRY(start_restore(shard, {first, placed}));
    done_ += placed;
    if (done_ == run.pages.count) {
      ++next_;
      done_ = Pages(0);
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
  for (std::size_t i = 0; i < incoming_.size(); ++i) {
    for (const PageRange& pages : incoming_[i].backed) {
      STILLWAKE_TRY(start_restore(i, pages));
    }
  }
  if (saved_ < batches_.size()) {
    auto saver = start_thread("saving one set of a swap while the other comes in", [this] { save_batches(); });
    if (saver) {
      saver_ = std::move(*saver);
    } else { // all of it first, then
      device_.table().log(LogLevel::kWarning, (saver.error().describe() + "; it is done one after the other").c_str());
      save_batches();
    }
  }
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
    const Pages rest = arrivals_[next_].run.pages.count - done_;
    auto handles = take_pages(device_, rest);
    if (!handles) {
      lacking_ = std::max(lacking_, rest);
      return failure(std::move(handles).error());
    }
    keep_fresh(std::move(*handles));
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
  release_pool((outgoing_.empty() ? incoming_.front().core : outgoing_.front())->extents(), report);
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

void DeviceSwap::release_pool(ExtentMap& keeper, Report& report) {
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
      keeper.keep_unreleased(std::move(kept));
    }
  }
}

} // namespace stillwake
