// SPDX-License-Identifier: Apache-2.0
// What a ShardCore does with its mirror outside of transitions: prepare, trim, the host's own access; and who may start
// a transition while a prepare runs in the background.
#include "shard/shard_core.h"

#include "shard/live_pages.h"
#include "shard/quiesce.h"
#include "shard/waking.h"

namespace stillwake {

Result<void> ShardCore::begin_transition() {
  note_use();
  std::thread preparing;
  {
    RankedLock lock(mutex_);
    preparing.swap(preparing_);
  }
  if (preparing.joinable()) {
    preparing.join();
    if (auto error = std::exchange(prepare_error_, std::nullopt)) {
      return failure(std::move(*error));
    }
  }
  bool expected = false;
  if (!in_transition_.compare_exchange_strong(expected, true)) {
    return failure(ErrorCode::kBusy, "shard '" + name() + "' is " + to_string(state_) +
                                         ": another transition of it is under way; wait for that one");
  }
  return {};
}

void ShardCore::end_transition() { STILLWAKE_CHECK_EQ(in_transition_.exchange(false), true); }

Result<void> ShardCore::pin_live_pages(const std::vector<BlockLiveRanges>& told) {
  looking_ = true;
  heap_->seal();
  auto live = live_pages(told);
  heap_->unseal();
  looking_ = false;
  STILLWAKE_TRY(live);
  if (options_.policy == Policy::kDiscard) {
    live->pieces.clear();
  }
  auto job = arrange_mirror(live->pieces);
  if (!job && job.error().code == ErrorCode::kOverBudget && registry_.give_up_retained({this})) {
    job = arrange_mirror(live->pieces);
  }
  STILLWAKE_TRY(job);
  auto finished = (*job)->finish();
  if (!finished) {
    forget_unpinned();
  }
  return finished;
}

void ShardCore::finish_wake(const std::vector<PageRange>& kept) {
  set_state(ShardState::kAwake);
  count_wake();
  auto job = arrange_mirror(options_.backing == Backing::kRetain ? kept : std::vector<PageRange>());
  const Result<void> arranged = job ? (*job)->finish() : Result<void>(failure(job.error()));
  if (!arranged) {
    // Nothing is lost: the shard is awake, and the next sleep arranges anew.
    forget_unpinned();
    device_.table().log(LogLevel::kWarning, arranged.error().describe().c_str());
  }
}

void ShardCore::forget_unpinned() {
  for (Pages page; page < pages_.size(); ++page) {
    if (pages_[page].encoding == PageEncoding::kRaw && !mirror_->is_pinned({page, Pages(1)})) {
      pages_[page] = PageEntry();
    }
  }
}

Result<void> ShardCore::prepare(Shard::Prepare how) {
  if (how != Shard::Prepare::kForeground && how != Shard::Prepare::kBackground) {
    return failure(ErrorCode::kInvalidArgument, "shard '" + name() + "': preparing in way " +
                                                    std::to_string(static_cast<int>(how)) +
                                                    ", which is none of the enum's; use a named one");
  }
  if (state() != ShardState::kAwake) {
    return failure(state_error(*this, state_, "preparing"));
  }
  // Asked before anything of ours is held.
  const auto told = options_.owner != nullptr ? options_.owner->live_ranges() : std::vector<BlockLiveRanges>();
  STILLWAKE_TRY(begin_transition());
  Cleanup end([this] { end_transition(); });
  if (state_ != ShardState::kAwake) {
    return failure(state_error(*this, state_, "preparing"));
  }
  if (how == Shard::Prepare::kForeground) {
    return pin_live_pages(told);
  }
  const RankedLock lock(mutex_);
  auto started = start_thread("preparing shard '" + name() + "' in the background", [this, told] {
    if (auto pinned = pin_live_pages(told); !pinned) {
      prepare_error_ = std::move(pinned).error();
    }
    end_transition();
  });
  STILLWAKE_TRY(started);
  end.cancel(); // the thread ends it
  preparing_ = std::move(*started);
  return {};
}

Result<Bytes> ShardCore::trim() {
  (void)state(); // a wake that has ended is settled first
  STILLWAKE_TRY(begin_transition());
  Cleanup end([this] { end_transition(); });
  const Bytes before = mirror_->pinned();
  if (state_ == ShardState::kAwake) {
    pages_.forget_all();
    STILLWAKE_TRY(mirror_->clear());
  } else if (state_ == ShardState::kAsleep) {
    STILLWAKE_TRY(unpin_unneeded());
  } else if (state_ == ShardState::kLost) {
    return failure(state_error(*this, state_, "trimming"));
  }
  return before - mirror_->pinned();
}

// Whole pieces only: what a sleeping page needs is never moved.
Result<void> ShardCore::unpin_unneeded() {
  STILLWAKE_TRY(check_kept());
  heap_->drain_queue();
  const std::vector<MappedRun> live = find_mapped_runs(heap_->live_blocks());
  std::vector<PageRange> kept;
  for (const PageRange& piece : mirror_->pieces()) {
    bool needed = false;
    for (Pages page = piece.first; page < piece.end() && !needed; ++page) {
      needed = pages_[page].encoding == PageEncoding::kRaw &&
               std::any_of(live.begin(), live.end(), [&](const MappedRun& run) { return run.pages.contains(page); });
    }
    if (needed) {
      kept.push_back(piece);
    }
  }
  auto job = mirror_->arrange(kept, Pages(0));
  Result<void> unpinned = job ? (*job)->finish() : Result<void>(failure(job.error()));
  forget_unpinned(); // of blocks that are gone
  kept_ = pages_.kept(kept_end_);
  return unpinned;
}

bool ShardCore::hold_retained() {
  bool expected = false;
  if (mirror_->pinned() == Bytes(0) || !in_transition_.compare_exchange_strong(expected, true)) {
    return false;
  }
  if (state_ != ShardState::kAwake) {
    end_transition();
    return false;
  }
  return true;
}

bool ShardCore::give_up_retained() {
  Cleanup end([this] { end_transition(); });
  pages_.forget_all();
  return mirror_->clear().has_value();
}

Result<Pages> ShardCore::page_of_sleeping(const void* pointer, Bytes size) const {
  const DeviceAddress address(pointer);
  if (options_.host_copy != HostCopy::kReadable) {
    return failure(ErrorCode::kInvalidArgument, "the host copy of shard '" + name() +
                                                    "' may be packed; create it with HostCopy::kReadable to read it");
  }
  const auto block = reservation_.contains(address) ? heap_->find(pointer) : std::nullopt;
  if (!block || size > block->offset + block->size - (address - reservation_.base())) {
    return failure(ErrorCode::kInvalidArgument, std::to_string(size.count()) + " bytes at address " +
                                                    hexadecimal(address) + " do not lie in one live block of shard '" +
                                                    name() + "'");
  }
  if (state_ != ShardState::kAsleep) {
    return failure(ErrorCode::kBusy, "shard '" + name() + "' is " + to_string(state_) +
                                         "; its host copy can be used only while it is asleep");
  }
  return pages_below(address - reservation_.base());
}

Result<void> ShardCore::check_page_kept(Pages page) const {
  if (pages_[page].encoding == PageEncoding::kRaw) {
    return {};
  }
  return failure(ErrorCode::kInvalidArgument,
                 "shard '" + name() + "' kept nothing of page " + std::to_string(page.count()) + ": " +
                     (options_.policy == Policy::kDiscard ? "its policy is discard"
                                                          : "its owner said that nothing in it is live"));
}

Result<std::byte*> ShardCore::host_address(const void* pointer) const {
  auto page = page_of_sleeping(pointer, Bytes(1));
  STILLWAKE_TRY(page);
  STILLWAKE_TRY(check_page_kept(*page));
  return mirror_->at(Pages(0)) + (DeviceAddress(pointer) - reservation_.base()).size();
}

Result<void> ShardCore::mark_host_dirty(const void* pointer, Bytes size) {
  if (size == Bytes(0)) {
    return failure(ErrorCode::kInvalidArgument, "0 bytes cannot be marked as written; give at least 1");
  }
  auto first = page_of_sleeping(pointer, size);
  STILLWAKE_TRY(first);
  const Pages end = pages_holding(DeviceAddress(pointer) - reservation_.base() + size);
  for (Pages page = *first; page < end; ++page) {
    STILLWAKE_TRY(check_page_kept(page));
  }
  const RankedLock lock(mutex_); // of threads that each write a part of one page
  for (Pages page = *first; page < end; ++page) {
    pages_[page].host_dirty = true;
    pages_[page].digest.reset();
  }
  return {};
}

} // namespace stillwake
