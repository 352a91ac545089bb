// SPDX-License-Identifier: Apache-2.0
// HostPages is a range of host addresses that never moves, with memory behind the parts that were opened. The system's
// calls for it, and the driver's two for pinning; which part is in what state, its owner knows.
#pragma once

#include "allocator/driver/driver_layer.h"

namespace stillwake {

class HostPages {
public:
  /// Reserves `size` bytes of addresses (a multiple of the page size) at a multiple of `alignment`: no access, no
  /// memory, not inherited by fork, huge pages where the system has them, memory from the device's node where that is
  /// known. kOutOfHostMemory when the system has no such addresses.
  [[nodiscard]] static Result<HostPages> reserve(Device& device, Bytes size, Bytes alignment);

  HostPages() = default;
  HostPages(HostPages&& other) noexcept;
  HostPages& operator=(HostPages&& other) noexcept;
  /// Gives the addresses back. Nothing in it may be pinned; see `leak`.
  ~HostPages();

  explicit operator bool() const { return base_ != nullptr; }
  std::byte* base() const { return base_; }
  Bytes size() const { return size_; }
  Device& device() const { return *device_; }

  /// Lets `size` bytes at `offset` be used. Takes no memory yet.
  [[nodiscard]] Result<void> open(Bytes offset, Bytes size);
  /// Puts memory behind every byte of an opened part; what is there already keeps its content. Any thread, and several
  /// at once for one part.
  [[nodiscard]] Result<void> populate(Bytes offset, Bytes size);
  /// Gives the memory behind a part back and closes it. Nothing of it may be pinned.
  void punch(Bytes offset, Bytes size);

  /// Pins a part as one registration, for all devices. Any thread. Errors: kOutOfHostMemory, kLost, kDriverCallFailed.
  [[nodiscard]] Result<void> pin(Bytes offset, Bytes size);
  /// Ends the registration that begins at `offset`. On failure the part is still pinned.
  [[nodiscard]] Result<void> unpin(Bytes offset, Bytes size);

  /// Forgets the addresses without giving them back, so that nobody is handed memory that a device may still use.
  void leak() { base_ = nullptr; }

private:
  HostPages(Device& device, std::byte* base, Bytes size) : device_(&device), base_(base), size_(size) {}

  Device* device_ = nullptr;
  std::byte* base_ = nullptr;
  Bytes size_;
};

} // namespace stillwake
