// SPDX-License-Identifier: Apache-2.0
// A SpaceMap says what every byte of a reservation is, in one map by address that has no gaps. A place is one of
//   hole     no pages behind it; whole pages
//   free     backed, and safe for somebody: see Safety
//   block    handed out, or cached, or freed with the free still in the queue: the block's record knows
//   growing  a hole, and perhaps the free space right before and after it, while the source puts memory there
// Neighbours that may join always have. Free places are found by size too: best fit, the lowest address on a tie.
//
// It calls nobody and knows no lock: whoever owns it guards it.
#pragma once

#include "allocator/heap/block_table.h"

#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

namespace stillwake {

/// The number of a point in time on the device: see WorkEpochs. 0: none was recorded yet.
using Epoch = std::uint64_t;

/// Who may use a free place at once. The work that was queued before it was freed may still run: it is safe for the
/// stream of that work, for everybody once the epoch is over.
struct Safety {
  enum class Who { kAnyone, kStream, kNobody };
  Who who = Who::kAnyone;
  Stream stream = nullptr; ///< of kStream
  Epoch epoch = 0;         ///< of kStream and kNobody

  bool usable_by(Stream other) const { return who == Who::kAnyone || (who == Who::kStream && stream == other); }
  friend bool operator==(const Safety&, const Safety&) = default;
};

struct UnitRange {
  Unit start = 0;
  Unit units = 0;
};

class SpaceMap {
public:
  enum class Kind { kHole, kFree, kBlock, kGrowing };
  struct Place {
    Unit units = 0;
    Kind kind = Kind::kHole;
    Safety safety; ///< of kFree
  };
  using Places = std::map<Unit, Place>;

  explicit SpaceMap(Unit units);

  // Blocks.

  /// Makes a block of backed free space that `stream` may use.
  std::optional<Unit> take(Unit units, Stream stream);
  /// The same of an extent that is one handle and has exactly this size, all of it free.
  std::optional<Unit> take_one_handle(Unit units, Stream stream);
  /// A block becomes free space.
  void release(Unit start, Safety safety);

  // Growth: begin, then end or abandon. One at a time.

  struct Growth {
    Unit start = 0; ///< where the block will begin: the tail, or the hole
    Unit tail = 0;  ///< units of the free place before the hole that the block uses
    Safety tail_safety;
    Unit head = 0; ///< units of the free place after the hole, where only the whole hole and it together are enough
    Safety head_safety;
    Unit units = 0; ///< of the block
    PageRange hole;
    Pages at_least;
    BlockKind kind = BlockKind::kShared;
  };
  std::optional<Growth> begin_growth(Unit units, Stream stream, BlockKind kind);
  /// `backed` pages from the hole's front are there: makes the block.
  void end_growth(const Growth& growth, Pages backed);
  void abandon_growth(const Growth& growth);

  // Safety.

  /// Gives every free place that waits and has no epoch yet this one; `streams`: those safe for one stream too.
  void begin_epoch(Epoch epoch, bool streams);
  /// Places of this epoch are safe for anyone from now on.
  void end_epoch(Epoch epoch);
  /// All work is done. One-handle extents that are not a live block are forgotten: what comes back behind their pages
  /// after a sleep need not be one handle.
  void end_all_epochs();
  /// Whether a place waits for an epoch that nobody recorded.
  bool waits_without_epoch(bool streams) const { return unrecorded_[1] != 0 || (streams && unrecorded_[0] != 0); }
  /// Free space, safe for whomever, that holds the block once it is safe: neighbours count as one.
  std::optional<UnitRange> find_unsafe(Unit units, BlockKind kind) const;
  /// `stream` waits for `epoch` now, and everything in `range` is older: it may be used by it.
  void make_safe_for(UnitRange range, Stream stream, Epoch epoch);

  // Whole pages of a sealed heap.

  std::vector<PageRange> unused_pages() const;
  void note_unbacked(PageRange pages);
  void note_backed(PageRange pages);

  // What is there.

  /// The start of the block that holds `unit`, or nothing.
  std::optional<Unit> block_at(Unit unit) const;
  const Places& places() const { return places_; }
  /// Free units that are safe for anyone or for one stream, and those that are safe for nobody yet.
  std::uint64_t free_units() const { return free_units_; }
  std::uint64_t parked_units() const { return parked_units_; }
  void check_invariants() const;

private:
  using BySize = std::set<std::pair<Unit, Unit>>; ///< (units, start)
  using Iterator = Places::iterator;

  static std::optional<Safety> joined(const Place& a, const Place& b);
  BySize* sizes_of(const Safety& safety);
  void enter(Unit start, const Place& place);
  void leave(Unit start, const Place& place);
  /// Puts a place into the gap that was left for it, joined with its neighbours where they may join.
  void put(Unit start, Place place);
  Place remove(Iterator at);
  /// Makes [start, start + units), which lies in `at`, a place of another kind; what is left of `at` stays.
  void carve(Iterator at, Unit start, Unit units, Kind kind);
  Iterator place_of(Unit unit);
  void change_safety(Unit start, Safety safety);
  template <class Change> void change_waiting(Change change);

  Unit units_;
  Places places_;
  BySize anyone_;                                ///< free places safe for anyone
  std::unordered_map<Stream, BySize> of_stream_; ///< free places safe for one stream; no empty sets
  std::set<Unit> waiting_;                       ///< free places that are not safe for anyone
  std::size_t unrecorded_[2] = {0, 0};           ///< waiting places without an epoch: of kStream, of kNobody
  std::set<Unit> holes_;
  std::map<Unit, Unit> one_handle_; ///< extents known to be one handle: start, units
  std::uint64_t free_units_ = 0;
  std::uint64_t parked_units_ = 0;
};

} // namespace stillwake
