// SPDX-License-Identifier: Apache-2.0
// A Mirror is the host's side of one reservation: as many host addresses, with memory only behind pinned pieces. A raw
// page's backing lies at the page's own offset, in every cycle. A piece is pinned as one, so no copy spans two.
//
// Which pieces are wanted is decided by shard/. A Mirror is used by one transition at a time (the caller's lock); the
// numbers may be read from any thread.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/host/host_budget.h"

#include <atomic>
#include <memory>
#include <span>
#include <vector>

namespace stillwake {

class HostArena;

/// Pieces that are being pinned. `wait_for` may be called while other pieces are still under way: that is the pipeline
/// of a first sleep. Destroying it waits for all of them.
class PinningJob {
public:
  virtual ~PinningJob() = default;
  /// Blocks until the piece that holds `page` is pinned, or says why it is not. Errors: kOutOfHostMemory, kLost.
  [[nodiscard]] virtual Result<void> wait_for(Pages page) = 0;
  /// Waits for all pieces. On an error every piece that this job has added is given up again, so the mirror holds what
  /// it held before, less pieces that had to grow.
  [[nodiscard]] virtual Result<void> finish() = 0;
};

class Mirror {
public:
  /// Reserves `size` host addresses (PROT_NONE, 2 MiB aligned, no memory, not inherited by fork).
  [[nodiscard]] static Result<std::unique_ptr<Mirror>> create(HostArena& arena, Device& device, Bytes size);
  ~Mirror(); ///< Unpins and gives back everything.

  std::byte* at(Pages page) const { return base_ + Bytes(page).size(); }
  Bytes size() const { return size_; }
  bool contains(const void* pointer) const;

  /// Starts to make the pinned pieces hold every page of `wanted` (address order, disjoint, each to be one piece).
  /// A piece that is there and contains a wanted one is kept as it is; one that has to grow or to shrink is unpinned
  /// and pinned anew, its content kept. Pages that nobody wants any more are given back to the system as soon as they
  /// exceed `slack` in all. Budget is taken for all new pages before anything else happens: kOverBudget changes
  /// nothing. Pinning goes on in the arena's threads, in address order. One job at a time.
  [[nodiscard]] Result<std::unique_ptr<PinningJob>> arrange(std::span<const PageRange> wanted, Pages slack);

  /// The pinned pieces now, in address order.
  std::vector<PageRange> pieces() const;
  /// Whether the whole range lies within one pinned piece.
  bool is_pinned(PageRange range) const;
  Bytes pinned() const { return Bytes(pinned_pages_.load()); }

  /// Unpins and punches out every piece: arrange({}, 0). Nothing of the backing is left.
  [[nodiscard]] Result<void> clear();

  void check_invariants() const;

private:
  friend class MirrorPinningJob;
  Mirror(HostArena& arena, Device& device, std::byte* base, Bytes size);

  HostArena& arena_;
  Device& device_;
  std::byte* base_;
  Bytes size_;
  std::atomic<Pages> pinned_pages_{Pages(0)};
  std::vector<PageRange> pieces_;
};

} // namespace stillwake
