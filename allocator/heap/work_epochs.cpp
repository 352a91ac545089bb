// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/work_epochs.h"

namespace stillwake {

std::optional<OwnedEvent> WorkEpochs::take_event() {
  {
    RankedLock lock(pool_mutex_);
    if (!pool_.empty()) {
      OwnedEvent event = std::move(pool_.back());
      pool_.pop_back();
      return event;
    }
  }
  auto event = OwnedEvent::create(device_);
  return event ? std::optional(std::move(*event)) : std::nullopt;
}

void WorkEpochs::give_event(OwnedEvent event) {
  RankedLock lock(pool_mutex_);
  if (pool_.size() < kMostOpen) {
    pool_.push_back(std::move(event));
  }
}

std::optional<OwnedEvent> WorkEpochs::record_on(Stream stream) {
  const ContextScope scope(device_);
  if (driver_is_out_of_reach() || !scope.entered()) {
    return std::nullopt;
  }
  // An event recorded on a capturing stream becomes a node of its graph and can never be asked.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (device_.table().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE) {
    return std::nullopt;
  }
  auto event = take_event();
  if (!event) {
    return std::nullopt;
  }
  if (!event->record(stream)) {
    give_event(std::move(*event));
    return std::nullopt;
  }
  return event;
}

Epoch WorkEpochs::open(OwnedEvent event) {
  open_.push_back({next(), std::move(event)});
  return last_;
}

std::optional<Epoch> WorkEpochs::open_all() {
  const ContextScope scope(device_);
  if (driver_is_out_of_reach() || !device_.features().context_event || !scope.entered()) {
    return std::nullopt;
  }
  auto event = take_event();
  if (!event) {
    return std::nullopt;
  }
  if (device_.table().cuCtxRecordEvent(device_.context(), event->get()) != CUDA_SUCCESS) {
    give_event(std::move(*event));
    return std::nullopt;
  }
  return open(std::move(*event));
}

bool WorkEpochs::make_wait(Epoch epoch, Stream stream) {
  const ContextScope scope(device_);
  for (OpenEpoch& open : open_) {
    if (open.epoch == epoch) {
      return scope.entered() && open.event.make_wait(stream);
    }
  }
  return false;
}

std::vector<Epoch> WorkEpochs::take_done() {
  std::vector<Epoch> over;
  if (open_.empty() || driver_is_out_of_reach()) {
    return over;
  }
  const ContextScope scope(device_);
  if (!scope.entered()) {
    return over;
  }
  std::vector<OpenEpoch> still;
  for (OpenEpoch& open : open_) {
    const auto done = open.event.done();
    if (done && *done) {
      over.push_back(open.epoch);
      give_event(std::move(open.event));
    } else {
      still.push_back(std::move(open));
    }
  }
  open_ = std::move(still);
  return over;
}

void WorkEpochs::close_all() {
  for (OpenEpoch& open : open_) {
    give_event(std::move(open.event));
  }
  open_.clear();
}

} // namespace stillwake
