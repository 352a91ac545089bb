// SPDX-License-Identifier: Apache-2.0
// A StripeCache keeps freed blocks for the stream they belong to, so that the next allocation of that size and stream
// takes one uncontended lock and nothing else. A thread always uses the same stripe; nothing that stripes share is
// written on that path. A stripe keeps at most kMostBytes and kMostBlocks, and no block over kLargest.
#pragma once

#include "allocator/heap/block_table.h"
#include "allocator/heap/spin_lock.h"

#include <array>
#include <vector>

namespace stillwake {

/// One stripe. Everything below the lock is guarded by it.
class alignas(128) Stripe {
public:
  static constexpr Unit kLargest = static_cast<Unit>(1024 * 1024 / kUnitBytes);
  static constexpr std::uint64_t kMostUnits = 16 * 1024 * 1024 / kUnitBytes;
  static constexpr std::uint32_t kMostBlocks = 512;

  SpinLock lock;

  bool sealed = false;
  /// Blocks made live by threads of this stripe, less those freed by them: only the sum over all stripes means a count.
  std::int64_t live_blocks = 0;
  std::int64_t live_units = 0;
  std::uint64_t cached_units = 0;
  std::uint32_t cached_blocks = 0;

  /// Takes a cached block of exactly this stream and size, or answers 0. The block is live then.
  RecordIndex pop(BlockTable& table, Stream stream, Unit units);
  /// Keeps a freed block. False: no room, and nothing has changed.
  bool push(BlockTable& table, RecordIndex record);
  /// Moves every cached block to the end of `records`: freed, no longer cached.
  void take_all(BlockTable& table, std::vector<RecordIndex>& records);

private:
  /// A list of blocks of one stream and size, threaded through their records; without a head the bin is nobody's.
  struct Bin {
    Stream stream = nullptr;
    Unit units = 0;
    RecordIndex head = 0;
  };
  static constexpr std::size_t kSets = 32;
  static constexpr std::size_t kWays = 8;
  using Set = std::array<Bin, kWays>;

  Set& set_of(Stream stream, Unit units);

  // Which set is decided by a hash, which of its ways by looking at all: emptied bins leave no gaps to care about.
  std::array<Set, kSets> sets_;
};

class StripeCache {
public:
  static constexpr std::size_t kStripes = 16;

  /// The stripe of the calling thread.
  Stripe& mine();
  std::array<Stripe, kStripes>& all() { return stripes_; }

private:
  std::array<Stripe, kStripes> stripes_;
};

} // namespace stillwake
