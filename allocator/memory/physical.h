// SPDX-License-Identifier: Apache-2.0
// A Physical is one physical allocation of a device: one driver handle, no address. Its bytes go back to the device
// when it is released AND nothing maps it any more.
#pragma once

#include "allocator/driver/driver_layer.h"

#include <type_traits>

namespace stillwake {

class Physical {
public:
  /// Takes `pages` (at least one) of the device's memory; the content is undefined. kOutOfDeviceMemory names needed and
  /// free bytes.
  [[nodiscard]] static Result<Physical> create(Device& device, Pages pages);

  Physical() = default;
  Physical(Physical&& other) noexcept;
  Physical& operator=(Physical&& other) noexcept;
  ~Physical();

  explicit operator bool() const { return handle_ != 0; }
  CUmemGenericAllocationHandle handle() const { return handle_; }
  Pages pages() const { return pages_; }
  Device& device() const { return *device_; }

  /// Releases the handle. On failure it is still owned and can be released again.
  [[nodiscard]] Result<void> release();

private:
  Physical(Device& device, CUmemGenericAllocationHandle handle, Pages pages)
      : device_(&device), handle_(handle), pages_(pages) {}

  Device* device_ = nullptr;
  CUmemGenericAllocationHandle handle_ = 0;
  Pages pages_;
};

static_assert(std::is_nothrow_move_constructible_v<Physical> && !std::is_copy_constructible_v<Physical>);

} // namespace stillwake
