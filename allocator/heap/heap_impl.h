// SPDX-License-Identifier: Apache-2.0
// What a Heap is made of. Locks, outer first: the central lock (SpaceMap, the table's list of records, WorkEpochs,
// growing_), then one stripe's spin lock, then the queue's lock. Nobody waits for the central lock in a free: who
// cannot have it at once leaves a note, and the next one in carries it out.
//
// No lock is held while the ExtentSource works: it may take locks of the layer above, and its "memory is short" may
// free blocks of this very heap on this very thread.
#pragma once

#include "allocator/heap/block_table.h"
#include "allocator/heap/heap.h"
#include "allocator/heap/note_queue.h"
#include "allocator/heap/space_map.h"
#include "allocator/heap/stripe_cache.h"
#include "allocator/heap/work_epochs.h"

#include <condition_variable>
#include <thread>
#include <unordered_set>

namespace stillwake {

/// A lock that knows whether the calling thread holds it: a free from inside our own calls must not try to take it.
class CentralMutex {
public:
  void lock() {
    mutex_.lock();
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  bool try_lock() {
    if (held_by_me() || !mutex_.try_lock()) {
      return false;
    }
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void unlock() {
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool held_by_me() const { return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

private:
  RankedMutex mutex_{LockRank::kHeap};
  std::atomic<std::thread::id> owner_{};
};
using CentralLock = std::unique_lock<CentralMutex>;

class Heap::Impl {
public:
  Impl(Device& device, DeviceAddress base, Bytes size, ExtentSource& source);
  ~Impl();

  Result<void*> allocate(Bytes size, Stream stream, BlockKind kind);
  Result<void> free(void* pointer, std::optional<Stream> stream);
  std::optional<LiveBlock> find(const void* pointer) const;
  HeapStats stats() const;

  void seal();
  void unseal();
  void drain_queue();
  void consolidate(bool quiesced);
  std::vector<LiveBlock> live_blocks() const;
  std::vector<PageRange> unused_pages() const;
  void note_unbacked(PageRange pages);
  void note_backed(PageRange pages);
  void check_invariants() const;

private:
  Result<void*> allocate_cold(Unit units, Stream stream, BlockKind kind);
  /// kInvalidArgument for a stream of another device.
  Result<void> check_owner(Stream stream);
  /// Whether the stream captures, as far as it can be known.
  bool is_capturing(Stream stream);
  Result<void> grow(SpaceMap::Growth& growth, CentralLock& lock);
  Error no_addresses(Unit units) const;

  // All with the central lock.
  void* make_live(Unit start, Unit units, Stream stream, BlockKind kind);
  std::optional<Unit> take(Unit units, Stream stream, BlockKind kind);
  std::optional<Unit> take_or_reclaim(Unit units, Stream stream, BlockKind kind);
  std::optional<Unit> borrow(Unit units, Stream stream, BlockKind kind, CentralLock& lock);
  void carry_out_notes();
  void give_up(RecordIndex record, Safety safety);
  bool give_up_caches();
  bool collect_done();
  void record_waiting();
  void take_in_frees(); // carries out the notes, and records an event for what waits
  bool may_record() const { return asked_by_captures_ == 0 && !sealed_; }

  void carry_out_notes_if_possible();
  std::uint64_t offset_of(const void* pointer) const { return DeviceAddress(pointer).value() - base_.value(); }
  void* pointer_to(Unit unit) const { return (base_ + bytes_of(unit)).pointer(); }
  RecordIndex live_at(const void* pointer) const;
  tl::unexpected<Error> no_live_block(const void* pointer) const;
  LiveBlock describe(Unit start) const;

  Device& device_;
  const DeviceAddress base_;
  const Bytes size_;
  ExtentSource& source_;

  mutable StripeCache stripes_;
  BlockTable table_;
  NoteQueue notes_;

  mutable CentralMutex central_;
  mutable std::condition_variable_any grown_;
  SpaceMap space_;                           // guarded by central_
  WorkEpochs epochs_;                        // guarded by central_, but for what it says
  std::thread::id grower_;                   // guarded by central_; set while the source works
  std::atomic<bool> sealed_{false};          // written with central_ and every stripe's lock
  std::unordered_set<Stream> known_streams_; // guarded by central_; seen to be of this device
  std::atomic<int> asked_by_captures_{0};    // allocations under way while a capture runs; written with central_
};

} // namespace stillwake
