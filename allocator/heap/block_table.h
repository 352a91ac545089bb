// SPDX-License-Identifier: Apache-2.0
// A BlockTable finds the record of a block from its address in two reads, without a lock: an index with one 32-bit
// entry per 512 bytes of the reservation, and an array of records that never move. Both are addresses only until
// touched.
//
// A record's word holds the block's place and its state together, so that one compare-and-swap answers "is the block
// that starts HERE live, and am I the one who frees it": a record that was given to another block meanwhile has another
// place in its word. States: none -> live -> freed -> none, or freed -> cached -> live again or freed for good.
//
// claim, peek: any thread. add, remove: under the heap's central lock. make_cached, make_freed, make_live: by the one
// who holds the block, under the lock of its stripe.
#pragma once

#include "allocator/heap/extent_source.h"

#include <atomic>
#include <cstdint>
#include <optional>

namespace stillwake {

/// 512 bytes: blocks start and end on one. As a number: steps from the reservation's base, or a size.
using Unit = std::uint32_t;
constexpr std::uint64_t kUnitBytes = 512;
constexpr Unit kPageUnits = static_cast<Unit>(kPageBytes.count() / kUnitBytes);
constexpr Bytes bytes_of(std::uint64_t units) { return Bytes(units * kUnitBytes); }

/// The number of a record; 0 is none.
using RecordIndex = std::uint32_t;

enum class BlockState : std::uint64_t { kNone = 0, kLive = 1, kCached = 2, kFreed = 3 };

struct BlockRecord {
  std::atomic<std::uint64_t> word; ///< unit * 4 + state
  std::atomic<Stream> stream;      ///< whose block it is; read before the claim too
  Unit units;                      ///< written before the word says live
  RecordIndex next;                ///< of a bin or of the list of unused records
  BlockKind kind;

  Unit unit() const { return static_cast<Unit>(word.load(std::memory_order_acquire) >> 2); }
  BlockState state() const { return static_cast<BlockState>(word.load(std::memory_order_acquire) & 3); }
};

class BlockTable {
public:
  /// A table for a reservation of `units`. Without address space for it `valid` is false and nothing else may be
  /// called.
  explicit BlockTable(Unit units);
  ~BlockTable();
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  bool valid() const { return index_ != nullptr && records_ != nullptr; }

  RecordIndex add(Unit unit, Unit units, Stream stream, BlockKind kind);
  void remove(RecordIndex record);

  /// The record of the block that starts at `unit`, in whatever state, or 0.
  RecordIndex at(Unit unit) const { return index_[unit].load(std::memory_order_acquire); }
  BlockRecord& record(RecordIndex index) { return records_[index]; }
  const BlockRecord& record(RecordIndex index) const { return records_[index]; }

  /// Turns the live block at `unit` into a freed one. Of several threads exactly one succeeds.
  bool claim(RecordIndex record, Unit unit) {
    std::uint64_t expected = word(unit, BlockState::kLive);
    return records_[record].word.compare_exchange_strong(expected, word(unit, BlockState::kFreed),
                                                         std::memory_order_acq_rel, std::memory_order_relaxed);
  }
  void make_cached(RecordIndex index, Unit unit) { set(index, unit, BlockState::kCached); }
  void make_freed(RecordIndex index, Unit unit) { set(index, unit, BlockState::kFreed); }
  void make_live(RecordIndex index, Unit unit) { set(index, unit, BlockState::kLive); }

private:
  static constexpr std::uint64_t word(Unit unit, BlockState state) {
    return (std::uint64_t{unit} << 2) | static_cast<std::uint64_t>(state);
  }
  void set(RecordIndex index, Unit unit, BlockState state) {
    records_[index].word.store(word(unit, state), std::memory_order_release);
  }

  Unit units_;
  std::atomic<RecordIndex>* index_ = nullptr;
  BlockRecord* records_ = nullptr;
  RecordIndex unused_ = 0; ///< head of the list of records that were used before
  RecordIndex fresh_ = 1;  ///< the first record that never was
};

static_assert(sizeof(BlockRecord) == 32, "two records a cache line, none across two");

} // namespace stillwake
