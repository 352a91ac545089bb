// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/block_table.h"

#include <sys/mman.h>

namespace stillwake {
namespace {

/// Zeroed memory that costs nothing until it is touched. A forked child sees zeros: every pointer is foreign there, and
/// forking copies no page tables. (MADV_DONTFORK would turn a stray free in a child into a fault.)
void* map_lazily(std::size_t size) {
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    return nullptr;
  }
  // Hints: touched here and there, so huge pages would cost far more than they hold.
  madvise(at, size, MADV_NOHUGEPAGE);
  madvise(at, size, MADV_WIPEONFORK);
  madvise(at, size, MADV_DONTDUMP);
  return at;
}

std::size_t index_bytes(Unit units) { return std::size_t{units} * sizeof(RecordIndex); }
std::size_t record_bytes(Unit units) { return (std::size_t{units} + 1) * sizeof(BlockRecord); }

} // namespace

BlockTable::BlockTable(Unit units)
    : units_(units), index_(static_cast<std::atomic<RecordIndex>*>(map_lazily(index_bytes(units)))),
      records_(static_cast<BlockRecord*>(map_lazily(record_bytes(units)))) {}

BlockTable::~BlockTable() {
  if (index_ != nullptr) {
    munmap(static_cast<void*>(index_), index_bytes(units_));
  }
  if (records_ != nullptr) {
    munmap(static_cast<void*>(records_), record_bytes(units_));
  }
}

RecordIndex BlockTable::add(Unit unit, Unit units, Stream stream, BlockKind kind) {
  RecordIndex index = unused_;
  if (index != 0) {
    unused_ = records_[index].next;
  } else {
    index = fresh_++;
  }
  BlockRecord& record = records_[index];
  record.stream.store(stream, std::memory_order_relaxed);
  record.units = units;
  record.kind = kind;
  record.next = 0;
  set(index, unit, BlockState::kLive);
  index_[unit].store(index, std::memory_order_release);
  return index;
}

void BlockTable::remove(RecordIndex index) {
  BlockRecord& record = records_[index];
  index_[record.unit()].store(0, std::memory_order_release);
  record.word.store(0, std::memory_order_release);
  record.next = unused_;
  unused_ = index;
}

} // namespace stillwake
