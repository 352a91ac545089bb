// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/pinning_job.h"

#include "allocator/host/host_arena.h"

#include <algorithm>
#include <unistd.h>

namespace stillwake {
namespace {

// All threads populate parts of the same piece, so that the first piece is there soon and the copies behind it can
// start. A part is small because the system holds the process's address space while it populates one: whoever maps or
// allocates meanwhile waits that long.
constexpr Pages kPart = pages_below(kMiB * 8);

Error out_of_reach() {
  return Error{ErrorCode::kLost, 0, "",
               "pinning host memory: this process is a fork of the one that opened the driver, or is ending"};
}

} // namespace

MirrorPinningJob::MirrorPinningJob(Mirror& mirror, std::span<const PageRange> add)
    : mirror_(mirror), process_(getpid()) {
  for (PageRange range : add) {
    Piece piece{range};
    for (Pages at = range.first; at < range.end(); at += kPart) {
      units_.push_back({pieces_.size(), {at, std::min(kPart, range.end() - at)}});
      ++piece.parts_left;
    }
    pieces_.push_back(piece);
  }
  if (!units_.empty()) {
    has_threads_ = mirror_.arena_.workers_->submit(*this);
  }
}

MirrorPinningJob::~MirrorPinningJob() {
  if (auto finished = finish(); !finished && !driver_is_out_of_reach()) {
    mirror_.memory_.device().table().log(LogLevel::kWarning, finished.error().describe().c_str());
  }
}

bool MirrorPinningJob::step() {
  RankedLock lock(mutex_);
  if (next_unit_ == units_.size()) {
    return false;
  }
  const Unit unit = units_[next_unit_++];
  const bool wanted = !error_;
  lock.unlock();
  const Result<void> populated = wanted ? populate(unit.part) : Result<void>();
  lock.lock();
  if (!populated && !error_) {
    error_ = populated.error();
  }
  Piece& piece = pieces_[unit.piece];
  if (--piece.parts_left == 0) {
    State state = State::kAbandoned;
    if (!error_) {
      const PageRange range = piece.range;
      lock.unlock();
      const Result<void> pinned = mirror_.pin(range);
      lock.lock();
      if (pinned && sink_ != nullptr) {
        call_sink(range, lock);
      }
      state = pinned ? State::kPinned : State::kAbandoned;
      if (!pinned && !error_) {
        error_ = pinned.error();
      }
    }
    piece.state = state;
  }
  ++units_done_;
  changed_.notify_all();
  return true;
}

Result<void> MirrorPinningJob::populate(PageRange part) {
  if (driver_is_out_of_reach()) {
    return failure(out_of_reach());
  }
  STILLWAKE_TRY(mirror_.memory_.populate(Bytes(part.first), Bytes(part.count)));
  mirror_.note_populated(part.count);
  return {};
}

template <class Done> void MirrorPinningJob::work_until(Done done) {
  RankedLock lock(mutex_);
  while (!done()) {
    if (!has_threads_ && next_unit_ < units_.size()) {
      lock.unlock();
      step();
      lock.lock();
    } else {
      changed_.wait(lock);
    }
  }
}

Result<void> MirrorPinningJob::wait_for(Pages page) {
  if (getpid() != process_) {
    return failure(out_of_reach());
  }
  const auto after = std::partition_point(pieces_.begin(), pieces_.end(),
                                          [page](const Piece& piece) { return piece.range.first <= page; });
  if (after == pieces_.begin() || !std::prev(after)->range.contains(page)) {
    if (mirror_.is_pinned({page, Pages(1)})) {
      return {};
    }
    return failure(ErrorCode::kInvalidArgument,
                   "page " + std::to_string(page.count()) + " is in no piece of host memory that was asked for");
  }
  Piece& piece = *std::prev(after);
  State state = State::kWaiting;
  work_until([&] { return (state = piece.state) != State::kWaiting; });
  if (state == State::kPinned) {
    return {};
  }
  RankedLock lock(mutex_);
  return failure(*error_);
}

void MirrorPinningJob::call_sink(PageRange piece, RankedLock& lock) {
  PinnedSink* sink = sink_;
  ++in_sink_;
  lock.unlock();
  sink->pinned(*this, piece);
  lock.lock();
  --in_sink_;
  changed_.notify_all();
}

void MirrorPinningJob::tell(PinnedSink* sink) {
  RankedLock lock(mutex_);
  sink_ = sink;
  if (sink == nullptr) {
    changed_.wait(lock, [this] { return in_sink_ == 0; });
    return;
  }
  // A piece that becomes pinned from here on is told by its thread; pieces are never added.
  for (std::size_t at = 0; at < pieces_.size(); ++at) {
    if (pieces_[at].state == State::kPinned) {
      call_sink(pieces_[at].range, lock);
    }
  }
}

Result<void> MirrorPinningJob::finish() {
  if (getpid() != process_) {
    return failure(out_of_reach()); // neither the threads nor the memory are here
  }
  if (!finished_) {
    work_until([this] { return units_done_ == units_.size(); });
    mirror_.arena_.workers_->withdraw(*this);
    finished_ = true;
    mirror_.job_running_ = false;
    if (!driver_is_out_of_reach()) {
      if (error_) {
        undo();
      }
      mirror_.settle_budget();
    }
  }
  return error_ ? Result<void>(failure(*error_)) : Result<void>();
}

/// No thread is in the job any more. What will not unpin stays a piece of the mirror, counted.
void MirrorPinningJob::undo() {
  for (Piece& piece : pieces_) {
    if (piece.state == State::kPinned) {
      if (auto unpinned = mirror_.unpin(piece.range); !unpinned) {
        mirror_.memory_.device().table().log(LogLevel::kError, unpinned.error().describe().c_str());
        continue;
      }
      piece.state = State::kAbandoned;
    }
    mirror_.punch(piece.range);
  }
}

} // namespace stillwake
