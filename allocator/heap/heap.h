// SPDX-License-Identifier: Apache-2.0
// A Heap hands out blocks of one reservation, in stream order. It decides nothing about memory: an ExtentSource puts
// pages behind addresses. Every byte of the reservation is in exactly one place: a live block, a cached block, a parked
// block (freed from another stream, waiting for that stream's work), a backed free range, or a hole (no pages).
//
// States: open (allocate and free work), sealed (allocate answers busy; a free is a note in the queue; the shard may
// read and change what is backed). `seal` returns when no allocate and no free is under way inside.
//
// allocate and free: any thread, many at once; a warm pair takes one uncontended lock each and no driver call.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/heap/extent_source.h"

#include <memory>
#include <optional>
#include <vector>

namespace stillwake {

constexpr Bytes kBlockAlignment{512};

struct LiveBlock {
  Bytes offset; ///< from the reservation's base; a multiple of 512
  Bytes size;   ///< as handed out: the request rounded up to 512
  BlockKind kind = BlockKind::kShared;
};

struct HeapStats {
  std::uint64_t live_blocks = 0;
  Bytes live;        ///< bytes of live blocks
  Bytes cached;      ///< bytes of freed blocks kept for their stream
  Bytes parked;      ///< bytes of freed blocks that wait for work on another stream
  Bytes backed_free; ///< bytes free and backed
  std::uint64_t queued_frees = 0;
};

class Heap {
public:
  /// `size` is a multiple of the page size, all of it a hole at first. `source` outlives the heap.
  Heap(Device& device, DeviceAddress base, Bytes size, ExtentSource& source);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// A block of at least `size` bytes (at least 1), aligned to 512; kOneHandle blocks start on a page and own whole
  /// pages. The content is undefined. It may be used on `stream` at once, on others after the usual event. Errors:
  /// kInvalidArgument (0 bytes, or more than the reservation has), kBusy (sealed), kOutOfDeviceMemory (from the source,
  /// after caches were given up and parked blocks looked at), kLost.
  [[nodiscard]] Result<void*> allocate(Bytes size, Stream stream, BlockKind kind = BlockKind::kShared);

  /// Gives a block back. `stream` is where its last work was queued: its own stream costs nothing; another one, or
  /// unset (unknown: all work of the context so far), parks the block until that work is done. Never waits, never fails
  /// for lack of anything. Sealed: only queued. Errors: kInvalidArgument for a pointer that no live block starts at (a
  /// foreign pointer, a double free); a queued free is checked just the same, at once.
  [[nodiscard]] Result<void> free(void* pointer, std::optional<Stream> stream);

  /// The live block that holds `pointer` (anywhere inside), while open or sealed.
  std::optional<LiveBlock> find(const void* pointer) const;
  HeapStats stats() const;
  /// Streams that blocks were allocated on or freed from, in order of first use.
  std::vector<Stream> seen_streams() const;
  /// While true no event is queried or recorded: a capture runs. Parked blocks just wait; new ones are parked
  /// unrecorded and get their event when it ends.
  void set_capturing(bool capturing);

  /// Stops allocations and makes frees queue. Returns when none is under way. Seals nest never: open only.
  void seal();
  /// Carries out the queued frees and opens.
  void unseal();

  // Sealed only.

  /// Carries out queued frees now; a block freed while sealed needs no event once the device was quiesced.
  void drain_queue();
  /// Gives up cached blocks, and parked ones too when `quiesced` (all work is done), so that free ranges merge.
  void consolidate(bool quiesced);
  /// Live blocks in address order.
  std::vector<LiveBlock> live_blocks() const;
  /// Backed pages that no live block (and no parked one) touches, in address order.
  std::vector<PageRange> unused_pages() const;
  /// The source took the memory behind `pages` away (all of them unused): a hole from now on.
  void note_unbacked(PageRange pages);
  /// The source put memory behind `pages`, which were a hole: free from now on.
  void note_backed(PageRange pages);

  /// Aborts when two places overlap, a byte is in none, a free range touches its neighbour uncoalesced, or a count is
  /// off.
  void check_invariants() const;

private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace stillwake
