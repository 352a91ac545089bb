// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/mirror.h"

#include "allocator/host/host_arena.h"
#include "allocator/host/piece_plan.h"
#include "allocator/host/pinning_job.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace stillwake {
namespace {

bool starts_below(PageRange piece, Pages page) { return piece.first < page; }

} // namespace

Result<std::unique_ptr<Mirror>> Mirror::create(HostArena& arena, Device& device, Bytes size) {
  STILLWAKE_CHECK_LT(Bytes(0), size);
  STILLWAKE_CHECK_EQ(size % kPageBytes, Bytes(0));
  auto memory = HostPages::reserve(device, size, kPageBytes);
  if (!memory) {
    return failure(std::move(memory).error());
  }
  return std::unique_ptr<Mirror>(new Mirror(arena, std::move(*memory)));
}

Mirror::~Mirror() {
  if (driver_is_out_of_reach()) {
    return; // HostPages leaves the addresses alone too
  }
  STILLWAKE_CHECK(!job_running_);
  for (PageRange piece : pieces()) {
    if (try_twice(memory_.device().table(), [&] { return unpin(piece); })) {
      punch(piece);
    }
  }
  settle_budget();
  if (pinned() != Bytes(0)) {
    memory_.leak();
  }
}

bool Mirror::contains(const void* pointer) const {
  const auto* byte = static_cast<const std::byte*>(pointer);
  return !std::less<>()(byte, memory_.base()) && std::less<>()(byte, memory_.base() + size().size());
}

Result<std::unique_ptr<PinningJob>> Mirror::arrange(std::span<const PageRange> wanted, Pages slack) {
  if (driver_is_out_of_reach()) {
    return failure(ErrorCode::kLost, "pinning host memory: this process is a fork of the one that opened the driver, "
                                     "or is ending; the memory is not there");
  }
  STILLWAKE_CHECK(!job_running_);
  if (!wanted.empty()) {
    STILLWAKE_CHECK_LE(wanted.back().end(), pages_below(size()));
  }
  const PiecePlan plan = plan_pieces(pieces(), wanted, slack);
  const Pages more = plan.pages_before < plan.pages_after ? plan.pages_after - plan.pages_before : Pages(0);
  STILLWAKE_TRY(arena_.budget().take(Bytes(more)));
  charged_ += more;
  expect(plan, more);
  Cleanup settle([this] { settle_budget(); });
  STILLWAKE_TRY(unpin_dropped(plan.drop));
  for (PageRange pages : plan.punch) {
    punch(pages);
  }
  STILLWAKE_TRY(open(plan.add));
  settle.cancel();
  job_running_ = true;
  return std::unique_ptr<PinningJob>(new MirrorPinningJob(*this, plan.add));
}

/// What the plan needs beyond what was taken is what it gives to the system first.
void Mirror::expect(const PiecePlan& plan, Pages taken) {
  const Pages fresh = plan.fresh();
  arena_.budget().expect(Bytes(fresh - taken));
  Pages added;
  for (PageRange piece : plan.add) {
    added += piece.count;
  }
  RankedLock lock(mutex_);
  fresh_ = fresh;
  handed_over_ = added - fresh;
}

/// Unpins the pieces and leaves their memory; when one fails, the memory of those before it is given back.
Result<void> Mirror::unpin_dropped(std::span<const PageRange> drop) {
  for (std::size_t at = 0; at < drop.size(); ++at) {
    if (auto unpinned = unpin(drop[at]); !unpinned) {
      for (PageRange piece : drop.first(at)) {
        punch(piece);
      }
      return unpinned;
    }
  }
  return {};
}

/// Opens the ranges; when one fails, all are closed again and their memory, kept or not, is given back.
Result<void> Mirror::open(std::span<const PageRange> add) {
  for (PageRange piece : add) {
    if (auto opened = memory_.open(Bytes(piece.first), Bytes(piece.count)); !opened) {
      for (PageRange other : add) {
        punch(other);
      }
      return opened;
    }
  }
  return {};
}

Result<void> Mirror::pin(PageRange piece) {
  STILLWAKE_TRY(memory_.pin(Bytes(piece.first), Bytes(piece.count)));
  RankedLock lock(mutex_);
  pieces_.insert(std::lower_bound(pieces_.begin(), pieces_.end(), piece.first, starts_below), piece);
  pinned_pages_ = pinned_pages_.load() + piece.count;
  return {};
}

Result<void> Mirror::unpin(PageRange piece) {
  STILLWAKE_TRY(memory_.unpin(Bytes(piece.first), Bytes(piece.count)));
  RankedLock lock(mutex_);
  const auto found = std::lower_bound(pieces_.begin(), pieces_.end(), piece.first, starts_below);
  STILLWAKE_CHECK(found != pieces_.end() && *found == piece);
  pieces_.erase(found);
  pinned_pages_ = pinned_pages_.load() - piece.count;
  return {};
}

void Mirror::note_populated(Pages pages) {
  RankedLock lock(mutex_);
  // Which pages were handed over is not looked at: they count first, so that the budget never counts too little.
  const Pages old = std::min(handed_over_, pages);
  handed_over_ -= old;
  fresh_ -= pages - old;
  lock.unlock();
  arena_.budget().settle(Bytes(pages - old));
}

/// Makes the budget count what is pinned, which is never more than what was taken. No job is running.
void Mirror::settle_budget() {
  RankedLock lock(mutex_);
  const Pages never = std::exchange(fresh_, Pages(0));
  handed_over_ = Pages(0);
  lock.unlock();
  arena_.budget().settle(Bytes(never));
  const Pages pinned = pinned_pages_.load();
  STILLWAKE_CHECK_LE(pinned, charged_);
  arena_.budget().give_back(Bytes(charged_ - pinned));
  charged_ = pinned;
}

std::vector<PageRange> Mirror::pieces() const {
  RankedLock lock(mutex_);
  return pieces_;
}

bool Mirror::is_pinned(PageRange range) const {
  RankedLock lock(mutex_);
  // The last piece that starts at or below the range's first page.
  const auto after = std::lower_bound(pieces_.begin(), pieces_.end(), range.first + Pages(1), starts_below);
  return after != pieces_.begin() && range.end() <= std::prev(after)->end();
}

Result<void> Mirror::clear() {
  if (driver_is_out_of_reach()) {
    return {};
  }
  auto job = arrange({}, Pages(0));
  return job ? (*job)->finish() : failure(std::move(job).error());
}

void Mirror::check_invariants() const {
  STILLWAKE_CHECK(!job_running_);
  Pages sum;
  Pages end;
  for (PageRange piece : pieces()) {
    STILLWAKE_CHECK_LE(end, piece.first);
    STILLWAKE_CHECK_LT(Pages(0), piece.count);
    end = piece.end();
    sum += piece.count;
  }
  STILLWAKE_CHECK_LE(Bytes(end), size());
  STILLWAKE_CHECK_EQ(sum, pinned_pages_.load());
  STILLWAKE_CHECK_EQ(sum, charged_);
  STILLWAKE_CHECK_EQ(fresh_, Pages(0));
  STILLWAKE_CHECK_LE(Bytes(sum), arena_.pinned());
}

} // namespace stillwake
