// SPDX-License-Identifier: Apache-2.0
// What a Heap does when no cached block fits. Cheapest first: free space; space whose work is over by now; caches; then
// it grows; and when there is no memory left, it lets the asking stream wait for the work that free space waits for.
#include "allocator/heap/heap_impl.h"

#include <fmt/format.h>

namespace stillwake {

Result<void*> Heap::Impl::allocate_cold(Unit units, Stream stream, BlockKind kind) {
  CentralLock lock(central_);
  if (known_streams_.count(stream) != 0 && notes_.size() == 0 && !sealed_) {
    if (const auto start = take(units, stream, kind)) {
      return make_live(*start, units, stream, kind); // no call of the driver
    }
  }
  lock.unlock();
  STILLWAKE_TRY(check_owner(stream));
  const bool captures = source_.a_capture_runs() || is_capturing(stream);
  lock.lock();
  known_streams_.insert(stream);
  asked_by_captures_ += captures;
  Cleanup asked([&] { asked_by_captures_ -= captures; });
  while (true) {
    if (sealed_) {
      return failure(ErrorCode::kBusy, "the heap is sealed: a sleep or a wake is under way");
    }
    take_in_frees();
    if (const auto start = take_or_reclaim(units, stream, kind)) {
      return make_live(*start, units, stream, kind);
    }
    if (grower_ == std::this_thread::get_id()) {
      return failure(ErrorCode::kBusy, "allocate was called from inside the call that makes room for an allocation");
    }
    if (grower_ == std::thread::id()) {
      break;
    }
    grown_.wait(lock); // what another thread is adding may be enough
  }
  Error error;
  if (auto growth = space_.begin_growth(units, stream, kind)) {
    auto grown = grow(*growth, lock);
    if (grown) {
      return make_live(growth->start, units, stream, kind);
    }
    error = std::move(grown).error();
  } else {
    error = no_addresses(units);
  }
  // The source may have asked others to free, and they did; and nobody may have sealed the heap: a grower holds it off.
  take_in_frees();
  std::optional<Unit> start = take_or_reclaim(units, stream, kind);
  if (!start && error.code == ErrorCode::kOutOfDeviceMemory) {
    start = borrow(units, stream, kind, lock);
  }
  if (!start) {
    return failure(std::move(error));
  }
  return make_live(*start, units, stream, kind);
}

Result<void> Heap::Impl::check_owner(Stream stream) {
  auto owns = device_.owns(stream);
  if (!owns || !*owns) {
    return failure(
        owns || owns.error().code != ErrorCode::kLost
            ? Error{ErrorCode::kInvalidArgument, 0, "",
                    fmt::format("stream {} does not belong to device {}; allocate on a stream of the shard's "
                                "device",
                                static_cast<void*>(stream), device_.index().value())}
            : owns.error());
  }
  return {};
}

bool Heap::Impl::is_capturing(Stream stream) {
  const ContextScope scope(device_);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = device_.table().cuStreamIsCapturing(stream, &status);
  // The legacy stream refuses to answer while another stream captures: that is an answer, too.
  return asked != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Result<void> Heap::Impl::grow(SpaceMap::Growth& growth, CentralLock& lock) {
  grower_ = std::this_thread::get_id();
  lock.unlock();
  const Result<PageRange> backed = source_.back(growth.hole, growth.at_least, growth.kind);
  lock.lock();
  grower_ = std::thread::id();
  grown_.notify_all();
  if (!backed) {
    space_.abandon_growth(growth);
    return failure(backed.error());
  }
  STILLWAKE_CHECK_EQ(backed->first, growth.hole.first);
  space_.end_growth(growth, backed->count);
  return {};
}

Error Heap::Impl::no_addresses(Unit units) const {
  Error error;
  error.code = ErrorCode::kOutOfDeviceMemory;
  error.message = fmt::format("no {} of neighbouring addresses are free in a reservation of {}; free blocks of it, "
                              "or reserve more: other memory of the device does not help",
                              exact(bytes_of(units)), exact(size_));
  return error;
}

void* Heap::Impl::make_live(Unit start, Unit units, Stream stream, BlockKind kind) {
  table_.add(start, units, stream, kind);
  Stripe& stripe = stripes_.mine();
  const std::lock_guard lock(stripe.lock);
  ++stripe.live_blocks;
  stripe.live_units += units;
  return pointer_to(start);
}

std::optional<Unit> Heap::Impl::take(Unit units, Stream stream, BlockKind kind) {
  return kind == BlockKind::kShared ? space_.take(units, stream) : space_.take_one_handle(units, stream);
}

std::optional<Unit> Heap::Impl::take_or_reclaim(Unit units, Stream stream, BlockKind kind) {
  std::optional<Unit> start = take(units, stream, kind);
  if (!start && collect_done()) {
    start = take(units, stream, kind);
  }
  if (!start && give_up_caches()) {
    start = take(units, stream, kind);
  }
  if (!start && may_record() && space_.waits_without_epoch(true) && epochs_.has_room()) {
    // Space that only its own stream may use becomes everybody's once what is queued now is done.
    if (const auto epoch = epochs_.open_all()) {
      space_.begin_epoch(*epoch, true);
    }
    if (collect_done()) {
      start = take(units, stream, kind);
    }
  }
  return start;
}

/// The last resort: `stream`, not the host, waits for all work that was queued so far, and may then use free space that
/// waits for some of it. Where the driver cannot record the whole context, the host waits for it.
std::optional<Unit> Heap::Impl::borrow(Unit units, Stream stream, BlockKind kind, CentralLock& lock) {
  const auto range = space_.find_unsafe(units, kind);
  if (!range || !may_record()) {
    return std::nullopt;
  }
  if (device_.features().context_event) {
    const auto epoch = epochs_.open_all();
    if (!epoch || !epochs_.make_wait(*epoch, stream)) {
      return std::nullopt;
    }
    space_.make_safe_for(*range, stream, *epoch);
    return take(units, stream, kind);
  }
  const Epoch epoch = epochs_.next();
  space_.begin_epoch(epoch, true); // what is freed from here on is not covered
  lock.unlock();
  const auto synchronized = [&]() -> Result<void> {
    STILLWAKE_ENTER(device_);
    return STILLWAKE_CALL(device_.table(), "waiting for memory that others freed", cuCtxSynchronize);
  }();
  lock.lock();
  if (!synchronized || sealed_) {
    return std::nullopt;
  }
  space_.end_epoch(epoch);
  take_in_frees();
  return take_or_reclaim(units, stream, kind);
}

void Heap::Impl::give_up(RecordIndex record, Safety safety) {
  space_.release(table_.record(record).unit(), safety);
  table_.remove(record);
}

void Heap::Impl::carry_out_notes() {
  for (Note& note : notes_.take()) {
    if (note.event && !epochs_.has_room()) {
      collect_done();
    }
    if (note.event && note.safety.who == Safety::Who::kNobody) {
      if (epochs_.has_room()) {
        note.safety.epoch = epochs_.open(std::move(*note.event));
      } else {
        epochs_.give_event(std::move(*note.event)); // too many: this one joins those that wait for a common event
      }
    }
    give_up(note.record, note.safety);
  }
}

void Heap::Impl::take_in_frees() {
  carry_out_notes();
  record_waiting();
}

/// One event for all that was freed from an unknown stream, or whose own event could not be recorded.
void Heap::Impl::record_waiting() {
  if (!may_record() || !space_.waits_without_epoch(false)) {
    return;
  }
  if (!epochs_.has_room()) {
    collect_done();
  }
  if (epochs_.has_room()) {
    if (const auto epoch = epochs_.open_all()) {
      space_.begin_epoch(*epoch, false);
    }
  }
}

bool Heap::Impl::collect_done() {
  if (!may_record() || !epochs_.any_open()) {
    return false;
  }
  const std::vector<Epoch> over = epochs_.take_done();
  for (const Epoch epoch : over) {
    space_.end_epoch(epoch);
  }
  return !over.empty();
}

bool Heap::Impl::give_up_caches() {
  std::vector<RecordIndex> records;
  for (Stripe& stripe : stripes_.all()) {
    const std::lock_guard lock(stripe.lock);
    stripe.take_all(table_, records);
  }
  for (const RecordIndex record : records) {
    give_up(record, {Safety::Who::kStream, table_.record(record).stream.load(std::memory_order_relaxed), 0});
  }
  return !records.empty();
}

} // namespace stillwake
