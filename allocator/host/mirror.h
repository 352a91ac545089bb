// SPDX-License-Identifier: Apache-2.0
// A Mirror is the host's side of one reservation: as many host addresses, with memory only behind pinned pieces. A raw
// page's backing lies at the page's own offset, in every cycle. A piece is pinned as one, so no copy spans two.
//
// Which pieces are wanted is decided by shard/. A Mirror is used by one transition at a time (the caller's lock); the
// numbers may be read from any thread. In a child made by fork nothing of it is there: every call is inert.
#pragma once

#include "allocator/host/host_pages.h"

#include <atomic>
#include <memory>
#include <span>
#include <vector>

namespace stillwake {

class HostArena;
class PinningJob;
struct PiecePlan;

/// Who wants to know at once. The driver lets the calls that pin go before a copy that wants to start, and a pin takes
/// several times as long while a copy runs; so a copy is queued by the thread that has just pinned its piece, and many
/// threads pin (measured on an H200: docs/design/host-arena.md).
class PinnedSink {
public:
  virtual ~PinnedSink() = default;
  virtual void pinned(PinningJob& job, PageRange piece) = 0;
};

/// Pieces that are being pinned. `wait_for` may be called while other pieces are still under way: that is the pipeline
/// of a first sleep. Destroying it waits for all of them, as `finish` does; it goes before its mirror.
class PinningJob {
public:
  virtual ~PinningJob() = default;
  /// Blocks until the piece that holds `page` is pinned, or says why it is not. Any thread, several at once. With one
  /// pinning thread the pinning is done here. Errors: kOutOfHostMemory, kLost, kDriverCallFailed, and kInvalidArgument
  /// for a page that is in no piece.
  [[nodiscard]] virtual Result<void> wait_for(Pages page) = 0;
  /// Waits for all pieces. On an error every piece that this job has added is given up again, so the mirror holds what
  /// it held before, less what `arrange` gave up and less the pieces that had to grow or to shrink. Asked again, it
  /// answers the same.
  [[nodiscard]] virtual Result<void> finish() = 0;
  /// From now on tells `sink` of every piece as soon as it is pinned, and at once of those that are: before wait_for
  /// answers for that piece, on the thread that pinned it. Null ends it, and waits until nobody is inside.
  virtual void tell(PinnedSink* /*sink*/) {}
  /// Whether there was anything to pin.
  virtual bool pins_anything() const { return true; }
};

class Mirror {
public:
  /// Reserves `size` host addresses (PROT_NONE, 2 MiB aligned, no memory, not inherited by fork).
  [[nodiscard]] static Result<std::unique_ptr<Mirror>> create(HostArena& arena, Device& device, Bytes size);
  /// Unpins and gives back everything. What the driver will not unpin is leaked, pinned and counted.
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  std::byte* at(Pages page) const { return memory_.base() + Bytes(page).size(); }
  Bytes size() const { return memory_.size(); }
  bool contains(const void* pointer) const;

  /// Starts to make the pinned pieces hold every page of `wanted` (address order, disjoint, each to be one piece).
  /// A piece that is there and contains a wanted one is kept as it is; one that has to grow or to shrink is unpinned
  /// and pinned anew, the content of its wanted pages kept. When the pages that nobody wants exceed `slack` in all,
  /// pieces without a wanted page go back to the system, then the pieces with most unwanted pages shrink until the rest
  /// is within `slack`. Pages that are new have zeros.
  /// Budget is taken for what the mirror will hold more than now before anything else happens: kOverBudget changes
  /// nothing. What is given up goes before anything new is taken, so the peak is the larger of before and after.
  /// Pinning goes on in the arena's threads, in address order. One job at a time.
  /// Other errors: kOutOfHostMemory, kLost, kDriverCallFailed (unpinning); then the mirror holds less, never more, and
  /// `pieces` says what.
  [[nodiscard]] Result<std::unique_ptr<PinningJob>> arrange(std::span<const PageRange> wanted, Pages slack);

  /// The pinned pieces now, in address order. Those of a running job appear as they are pinned.
  std::vector<PageRange> pieces() const;
  /// Whether the whole range lies within one pinned piece.
  bool is_pinned(PageRange range) const;
  Bytes pinned() const { return Bytes(pinned_pages_.load()); }

  /// Unpins and punches out every piece: arrange({}, 0). Nothing of the backing is left. On an error what is left is
  /// still pinned, and can be cleared again.
  [[nodiscard]] Result<void> clear();

  /// Aborts when pieces overlap or leave the mirror, or when a count or the budget's share is off. Between jobs only.
  void check_invariants() const;

private:
  friend class MirrorPinningJob;
  Mirror(HostArena& arena, HostPages memory) : arena_(arena), memory_(std::move(memory)) {}

  Result<void> pin(PageRange piece);
  Result<void> unpin(PageRange piece);
  void punch(PageRange pages) { memory_.punch(Bytes(pages.first), Bytes(pages.count)); }
  Result<void> unpin_dropped(std::span<const PageRange> drop);
  Result<void> open(std::span<const PageRange> add);
  void expect(const PiecePlan& plan, Pages taken);
  /// So many pages more of the running job have memory.
  void note_populated(Pages pages);
  void settle_budget();

  HostArena& arena_;
  HostPages memory_;
  bool job_running_ = false; // the transition's thread only
  Pages charged_;            // what the budget counts for us; the transition's thread only
  std::atomic<Pages> pinned_pages_{Pages(0)};
  mutable RankedMutex mutex_{LockRank::kHost};
  std::vector<PageRange> pieces_; // guarded by mutex_
  Pages fresh_;                   // guarded by mutex_; of the running job: pages without memory
  Pages handed_over_;             // guarded by mutex_; of the running job: pages with memory, not populated again yet
};

} // namespace stillwake
