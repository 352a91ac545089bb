// SPDX-License-Identifier: Apache-2.0
// The warm path of a Heap, and its face. heap_cold.cpp has what a miss does, heap_sealed.cpp what a transition does.
#include "allocator/heap/heap.h"

#include "allocator/heap/heap_impl.h"

#include <fmt/format.h>

#include <algorithm>

namespace stillwake {
namespace {

Unit units_of_reservation(Bytes size) {
  STILLWAKE_CHECK_EQ(size % kPageBytes, Bytes(0));
  STILLWAKE_CHECK_LT(Bytes(0), size);
  STILLWAKE_CHECK_LT(size / kBlockAlignment, std::uint64_t{1} << 32); // 2 TiB: a unit is a 32-bit number
  return static_cast<Unit>(size / kBlockAlignment);
}

} // namespace

static_assert(kBlockAlignment.count() == kUnitBytes);

Heap::Impl::Impl(Device& device, DeviceAddress base, Bytes size, ExtentSource& source)
    : device_(device), base_(base), size_(size), source_(source), table_(units_of_reservation(size)),
      space_(units_of_reservation(size)), epochs_(device) {}

Heap::Impl::~Impl() = default;

Result<void*> Heap::Impl::allocate(Bytes size, Stream stream, BlockKind kind) {
  if (size == Bytes(0) || size > size_) {
    return failure(ErrorCode::kInvalidArgument,
                   fmt::format("a block of {} bytes was asked for; this heap gives blocks of 1 to {} bytes",
                               size.count(), size_.count()));
  }
  if (!table_.valid()) {
    return failure(ErrorCode::kOutOfHostMemory,
                   fmt::format("no address space for the block table of a reservation of {}", readable(size_)));
  }
  const Bytes step = kind == BlockKind::kOneHandle ? kPageBytes : kBlockAlignment;
  const Unit units = static_cast<Unit>(round_up(size, step) / kBlockAlignment);
  if (kind == BlockKind::kShared && units <= Stripe::kLargest) {
    Stripe& stripe = stripes_.mine();
    const std::lock_guard lock(stripe.lock);
    if (!stripe.sealed) {
      if (const RecordIndex record = stripe.pop(table_, stream, units); record != 0) {
        ++stripe.live_blocks;
        stripe.live_units += units;
        return pointer_to(table_.record(record).unit());
      }
    }
  }
  return allocate_cold(units, stream, kind);
}

/// The record of the live block that starts at `pointer`, or 0. The answer may be old by the time it is used: `claim`
/// decides.
RecordIndex Heap::Impl::live_at(const void* pointer) const {
  const std::uint64_t offset = offset_of(pointer); // wraps for addresses below the base
  if (offset >= size_.count() || offset % kUnitBytes != 0 || !table_.valid()) {
    return 0;
  }
  const RecordIndex record = table_.at(static_cast<Unit>(offset / kUnitBytes));
  return record != 0 && table_.record(record).state() == BlockState::kLive ? record : 0;
}

tl::unexpected<Error> Heap::Impl::no_live_block(const void* pointer) const {
  const std::uint64_t offset = offset_of(pointer);
  const char* why = "no live block starts there: it was freed already, or points into the middle of one";
  if (offset >= size_.count()) {
    why = "it is not an address of this heap";
  }
  return failure(ErrorCode::kInvalidArgument, fmt::format("freeing {}: {} (blocks lie in [{:#x}, {:#x}))", pointer, why,
                                                          base_.value(), (base_ + size_).value()));
}

Result<void> Heap::Impl::free(void* pointer, std::optional<Stream> stream) {
  const RecordIndex index = live_at(pointer);
  if (index == 0) {
    return no_live_block(pointer);
  }
  BlockRecord& record = table_.record(index);
  Note note;
  note.record = index;
  const auto is_own = [&] { return stream && *stream == record.stream.load(std::memory_order_relaxed); };
  if (!is_own()) {
    note.safety.who = Safety::Who::kNobody;
    if (stream) {
      // The only moment at which the stream is known to exist. Before the claim: nobody can have the block yet.
      note.event = may_record() ? epochs_.record_on(*stream) : std::nullopt;
    }
  }
  const Unit unit = static_cast<Unit>(offset_of(pointer) / kUnitBytes);
  Stripe& stripe = stripes_.mine();
  std::vector<RecordIndex> spilled;
  {
    const std::lock_guard lock(stripe.lock);
    if (!table_.claim(index, unit)) {
      if (note.event) {
        epochs_.give_event(std::move(*note.event));
      }
      return no_live_block(pointer);
    }
    --stripe.live_blocks;
    stripe.live_units -= record.units;
    const bool own = is_own();
    if (own && !stripe.sealed && record.kind == BlockKind::kShared && record.units <= Stripe::kLargest) {
      if (stripe.push(table_, index)) {
        return {};
      }
      stripe.take_all(table_, spilled); // full: all of it goes, so that sizes nobody asks for do not fill it for ever
    }
    note.safety = own ? Safety{Safety::Who::kStream, *stream, 0} : Safety{Safety::Who::kNobody, nullptr, 0};
    notes_.push(std::move(note));
    // Still with the stripe's lock: who seals has then seen every free that was claimed.
    for (const RecordIndex other : spilled) {
      notes_.push({other, {Safety::Who::kStream, table_.record(other).stream.load(std::memory_order_relaxed), 0}, {}});
    }
  }
  carry_out_notes_if_possible();
  return {};
}

void Heap::Impl::carry_out_notes_if_possible() {
  bool waits = false;
  while (notes_.size() != 0 && !sealed_) {
    const CentralLock lock(central_, std::try_to_lock);
    if (!lock.owns_lock() || sealed_) {
      return; // whoever has it, or comes next, does it
    }
    carry_out_notes();
    waits = may_record() && space_.waits_without_epoch(false);
  }
  if (waits && !source_.a_capture_runs()) { // asked with no lock held
    const CentralLock lock(central_, std::try_to_lock);
    if (lock.owns_lock()) {
      record_waiting();
    }
  }
}

LiveBlock Heap::Impl::describe(Unit start) const {
  const BlockRecord& record = table_.record(table_.at(start));
  return {bytes_of(start), bytes_of(record.units), record.kind};
}

std::optional<LiveBlock> Heap::Impl::find(const void* pointer) const {
  const std::uint64_t offset = offset_of(pointer);
  if (offset >= size_.count() || !table_.valid()) {
    return std::nullopt;
  }
  const CentralLock lock(central_);
  const auto start = space_.block_at(static_cast<Unit>(offset / kUnitBytes));
  if (!start || table_.record(table_.at(*start)).state() != BlockState::kLive) {
    return std::nullopt;
  }
  return describe(*start);
}

HeapStats Heap::Impl::stats() const {
  HeapStats stats;
  const CentralLock lock(central_);
  std::int64_t live_blocks = 0;
  std::int64_t live_units = 0;
  std::uint64_t cached_units = 0;
  for (Stripe& stripe : stripes_.all()) {
    const std::lock_guard stripe_lock(stripe.lock);
    live_blocks += stripe.live_blocks;
    live_units += stripe.live_units;
    cached_units += stripe.cached_units;
  }
  // One stripe after the other: with frees under way a sum may miss one half of a pair.
  stats.live_blocks = static_cast<std::uint64_t>(std::max<std::int64_t>(live_blocks, 0));
  stats.live = bytes_of(static_cast<std::uint64_t>(std::max<std::int64_t>(live_units, 0)));
  stats.cached = bytes_of(cached_units);
  stats.parked = bytes_of(space_.parked_units());
  stats.backed_free = bytes_of(space_.free_units());
  stats.queued_frees = notes_.size();
  return stats;
}

Heap::Heap(Device& device, DeviceAddress base, Bytes size, ExtentSource& source)
    : impl_(std::make_unique<Impl>(device, base, size, source)) {}
Heap::~Heap() = default;
Result<void*> Heap::allocate(Bytes size, Stream stream, BlockKind kind) { return impl_->allocate(size, stream, kind); }
Result<void> Heap::free(void* pointer, std::optional<Stream> stream) { return impl_->free(pointer, stream); }
std::optional<LiveBlock> Heap::find(const void* pointer) const { return impl_->find(pointer); }
HeapStats Heap::stats() const { return impl_->stats(); }
void Heap::seal() { impl_->seal(); }
void Heap::unseal() { impl_->unseal(); }
void Heap::drain_queue() { impl_->drain_queue(); }
void Heap::consolidate(bool quiesced) { impl_->consolidate(quiesced); }
std::vector<LiveBlock> Heap::live_blocks() const { return impl_->live_blocks(); }
std::vector<PageRange> Heap::unused_pages() const { return impl_->unused_pages(); }
void Heap::note_unbacked(PageRange pages) { impl_->note_unbacked(pages); }
void Heap::note_backed(PageRange pages) { impl_->note_backed(pages); }
void Heap::check_invariants() const { impl_->check_invariants(); }

} // namespace stillwake
