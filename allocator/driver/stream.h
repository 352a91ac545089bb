// SPDX-License-Identifier: Apache-2.0
// An OwnedStream is one stream of ours, an OwnedEvent one event; both belong to one device's primary context.
#pragma once

#include "allocator/driver/device.h"

#include <type_traits>

namespace stillwake {

class OwnedStream {
public:
  /// A stream that does not wait for the legacy stream.
  [[nodiscard]] static Result<OwnedStream> create(Device& device);
  OwnedStream() = default;
  OwnedStream(OwnedStream&& other) noexcept;
  OwnedStream& operator=(OwnedStream&& other) noexcept;
  ~OwnedStream();

  Stream get() const { return stream_; }
  [[nodiscard]] Result<void> synchronize();

private:
  Device* device_ = nullptr;
  Stream stream_ = nullptr;
};

class OwnedEvent {
public:
  enum class Timing { kOff, kOn };
  [[nodiscard]] static Result<OwnedEvent> create(Device& device, Timing timing = Timing::kOff);
  OwnedEvent() = default;
  OwnedEvent(OwnedEvent&& other) noexcept;
  OwnedEvent& operator=(OwnedEvent&& other) noexcept;
  ~OwnedEvent();

  explicit operator bool() const { return event_ != nullptr; }
  CUevent get() const { return event_; }
  Device& device() const { return *device_; }

  [[nodiscard]] Result<void> record(Stream stream);
  /// Makes the stream wait for the last record; the host does not wait.
  [[nodiscard]] Result<void> make_wait(Stream stream);
  [[nodiscard]] Result<void> synchronize();
  /// Whether the work before the last record is done. It spoils no capture but one that the event was recorded in.
  [[nodiscard]] Result<bool> done();

private:
  Device* device_ = nullptr;
  CUevent event_ = nullptr;
};

static_assert(std::is_nothrow_move_constructible_v<OwnedStream> && !std::is_copy_constructible_v<OwnedStream>);
static_assert(std::is_nothrow_move_constructible_v<OwnedEvent> && !std::is_copy_constructible_v<OwnedEvent>);

} // namespace stillwake
