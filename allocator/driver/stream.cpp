// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/stream.h"

#include "allocator/driver/try_twice.h"

#include <utility>

namespace stillwake {

Result<OwnedStream> OwnedStream::create(Device& device) {
  STILLWAKE_ENTER(device);
  OwnedStream stream;
  STILLWAKE_TRY(
      STILLWAKE_CALL(device.table(), "creating a stream", cuStreamCreate, &stream.stream_, CU_STREAM_NON_BLOCKING));
  stream.device_ = &device;
  return stream;
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), stream_(std::exchange(other.stream_, nullptr)) {}

OwnedStream& OwnedStream::operator=(OwnedStream&& other) noexcept {
  OwnedStream taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(stream_, taken.stream_);
  return *this;
}

OwnedStream::~OwnedStream() {
  if (stream_ == nullptr || driver_is_out_of_reach()) {
    return;
  }
  try_twice(device_->table(), [this]() -> Result<void> {
    STILLWAKE_ENTER(*device_);
    return STILLWAKE_CALL(device_->table(), "destroying a stream", cuStreamDestroy, stream_);
  });
}

Result<void> OwnedStream::synchronize() {
  STILLWAKE_ENTER(*device_);
  return STILLWAKE_CALL(device_->table(), "waiting for a stream", cuStreamSynchronize, stream_);
}

Result<OwnedEvent> OwnedEvent::create(Device& device, Timing timing) {
  STILLWAKE_ENTER(device);
  OwnedEvent event;
  STILLWAKE_TRY(STILLWAKE_CALL(device.table(), "creating an event", cuEventCreate, &event.event_,
                               timing == Timing::kOn ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
  event.device_ = &device;
  return event;
}

OwnedEvent::OwnedEvent(OwnedEvent&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), event_(std::exchange(other.event_, nullptr)) {}

OwnedEvent& OwnedEvent::operator=(OwnedEvent&& other) noexcept {
  OwnedEvent taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(event_, taken.event_);
  return *this;
}

OwnedEvent::~OwnedEvent() {
  if (event_ == nullptr || driver_is_out_of_reach()) {
    return;
  }
  try_twice(device_->table(), [this]() -> Result<void> {
    STILLWAKE_ENTER(*device_);
    return STILLWAKE_CALL(device_->table(), "destroying an event", cuEventDestroy, event_);
  });
}

Result<void> OwnedEvent::record(Stream stream) {
  STILLWAKE_ENTER(*device_);
  return STILLWAKE_CALL(device_->table(), "recording an event", cuEventRecord, event_, stream);
}

Result<void> OwnedEvent::make_wait(Stream stream) {
  STILLWAKE_ENTER(*device_);
  return STILLWAKE_CALL(device_->table(), "making a stream wait for an event", cuStreamWaitEvent, stream, event_, 0u);
}

Result<void> OwnedEvent::synchronize() {
  STILLWAKE_ENTER(*device_);
  return STILLWAKE_CALL(device_->table(), "waiting for an event", cuEventSynchronize, event_);
}

Result<bool> OwnedEvent::done() {
  STILLWAKE_ENTER(*device_);
  const CUresult result = device_->table().cuEventQuery(event_);
  if (result == CUDA_ERROR_NOT_READY) {
    return false;
  }
  STILLWAKE_TRY(check_call(device_->table(), CallId::cuEventQuery, result, "asking an event"));
  return true;
}

} // namespace stillwake
