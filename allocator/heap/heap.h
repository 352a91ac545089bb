// SPDX-License-Identifier: Apache-2.0
// A Heap hands out blocks of one reservation, in stream order. It decides nothing about memory: an ExtentSource puts
// pages behind addresses. Every byte of the reservation is in exactly one place: a live block, a cached block, parked
// space (freed from another stream, waiting for that work), a backed free range, or a hole (no pages). See
// docs/design/heap.md.
//
// States: open (allocate and free work), sealed (allocate answers busy; a free is a note in the queue; the shard may
// read and change what is backed). `seal` returns when no allocate and no free is under way inside.
//
// allocate and free: any thread, many at once; a warm pair takes one uncontended lock each and no driver call. free
// waits for no lock that is held for long, so it may come from inside our own calls. The source is called with no lock
// of the heap held. A stream handle is given to the driver only inside the call that passes it, so a stream may be
// destroyed once its work is done; a handle that compares equal means the same stream.
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
  Bytes parked;      ///< bytes freed from another stream, or an unknown one, whose work is not known to be done
  Bytes backed_free; ///< bytes free and backed, be it for one stream only
  std::uint64_t queued_frees = 0;
};

class Heap {
public:
  /// `size` is a multiple of the page size and less than 2 TiB, all of it a hole at first. `source` outlives the heap.
  Heap(Device& device, DeviceAddress base, Bytes size, ExtentSource& source);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// A block of at least `size` bytes (at least 1), aligned to 512; kOneHandle blocks start on a page and own whole
  /// pages. The content is undefined. A one-handle block
  /// is backed by one `back` call for exactly its pages, or by a free extent that such a call made. It may be used on
  /// `stream` at once, on others after the usual event. Errors: kInvalidArgument (0 bytes, or more than the reservation
  /// has), kBusy (sealed; or called from inside the source), kOutOfDeviceMemory (from the source, after caches were
  /// given up and parked space looked at; or no addresses are left in one piece), kOutOfHostMemory (no address space
  /// for the heap's own table), kLost. Before it runs out of memory it makes `stream` wait for the work that free space
  /// waits for and hands that out: the host does not wait (but it does where the driver cannot record an event on a
  /// whole context).
  [[nodiscard]] Result<void*> allocate(Bytes size, Stream stream, BlockKind kind = BlockKind::kShared);

  /// Gives a block back. `stream` is where its last work was queued: its own stream costs nothing; another one, or
  /// unset (unknown: all work of the context so far), parks the block until that work is done. Never waits, never fails
  /// for lack of anything (a block whose event cannot be had just waits longer). Sealed: only queued. Errors:
  /// kInvalidArgument for a pointer that no live block starts at (a foreign pointer, a double free); a queued free is
  /// checked just the same, at once.
  [[nodiscard]] Result<void> free(void* pointer, std::optional<Stream> stream);

  /// The live block that holds `pointer` (anywhere inside), while open or sealed.
  std::optional<LiveBlock> find(const void* pointer) const;
  HeapStats stats() const;

  /// Stops allocations and makes frees queue. Returns when none is under way, so the caller holds no lock that the
  /// source takes. Seals nest never: open only.
  void seal();
  /// Carries out the queued frees and opens.
  void unseal();

  // Sealed only.

  /// Carries out queued frees now. No driver call: the space waits for its work until `consolidate(true)` or `unseal`.
  void drain_queue();
  /// Gives up cached blocks, and when `quiesced` (all work of the context is done) makes all free space safe for every
  /// stream, so that free ranges merge. Does not carry out queued frees: drain first.
  void consolidate(bool quiesced);
  /// Blocks whose content counts, in address order: live ones, and freed ones whose free is still in the queue (their
  /// place is taken until it is carried out). Cached blocks are in neither list: consolidate first.
  std::vector<LiveBlock> live_blocks() const;
  /// Whole backed pages that are free and safe for every stream, in address order. After drain_queue and
  /// consolidate(true): all pages that no block of `live_blocks` touches.
  std::vector<PageRange> unused_pages() const;
  /// The source took the memory behind `pages` away (all of them unused, one run): a hole from now on.
  void note_unbacked(PageRange pages);
  /// The source put memory behind `pages` (one run), which were a hole: free from now on, safe for every stream.
  void note_backed(PageRange pages);

  /// Aborts when two places overlap, a byte is in none, a free range touches its neighbour uncoalesced, or a count is
  /// off. Any thread, any time; holds everybody up meanwhile.
  void check_invariants() const;

private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace stillwake
