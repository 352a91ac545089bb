// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/stripe_cache.h"

namespace stillwake {
namespace {

/// Threads are numbered as they come. The count is process-wide because a thread is; it decides nothing but which
/// stripe is used, so that up to 16 threads never meet (a hash of the thread's id would let two of eight collide).
unsigned thread_number() {
  static std::atomic<unsigned> next{0};
  thread_local const unsigned number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

} // namespace

Stripe::Set& Stripe::set_of(Stream stream, Unit units) {
  std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(stream) * 0x9E3779B97F4A7C15ull;
  mixed = (mixed ^ units) * 0xD1B54A32D192ED03ull;
  return sets_[(mixed >> 40) % kSets];
}

RecordIndex Stripe::pop(BlockTable& table, Stream stream, Unit units) {
  for (Bin& bin : set_of(stream, units)) {
    if (bin.head != 0 && bin.units == units && bin.stream == stream) {
      const RecordIndex index = bin.head;
      BlockRecord& record = table.record(index);
      bin.head = record.next;
      cached_units -= units;
      --cached_blocks;
      table.make_live(index, record.unit());
      return index;
    }
  }
  return 0;
}

bool Stripe::push(BlockTable& table, RecordIndex index) {
  BlockRecord& record = table.record(index);
  if (cached_blocks >= kMostBlocks || cached_units + record.units > kMostUnits) {
    return false;
  }
  const Stream stream = record.stream.load(std::memory_order_relaxed);
  Bin* found = nullptr;
  for (Bin& bin : set_of(stream, record.units)) {
    if (bin.head == 0) {
      found = found == nullptr ? &bin : found;
    } else if (bin.units == record.units && bin.stream == stream) {
      found = &bin;
      break;
    }
  }
  if (found == nullptr) {
    return false;
  }
  record.next = found->head;
  *found = Bin{stream, record.units, index};
  cached_units += record.units;
  ++cached_blocks;
  table.make_cached(index, record.unit());
  return true;
}

void Stripe::take_all(BlockTable& table, std::vector<RecordIndex>& records) {
  if (cached_blocks == 0) {
    return;
  }
  for (Set& set : sets_) {
    for (Bin& bin : set) {
      for (RecordIndex index = bin.head; index != 0; index = table.record(index).next) {
        table.make_freed(index, table.record(index).unit());
        records.push_back(index);
      }
      bin.head = 0;
    }
  }
  cached_units = 0;
  cached_blocks = 0;
}

Stripe& StripeCache::mine() { return stripes_[thread_number() % kStripes]; }

} // namespace stillwake
