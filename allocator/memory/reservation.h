// SPDX-License-Identifier: Apache-2.0
// A Reservation is a range of device addresses with nothing behind it. It outlives every Mapping placed in it and never
// moves. A Mapping puts one whole Physical behind neighbouring pages of it, until it is unmapped.
#pragma once

#include "allocator/memory/physical.h"

#include <span>

namespace stillwake {

class Mapping {
public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  explicit operator bool() const { return device_ != nullptr; }
  DeviceAddress address() const { return address_; }
  Pages pages() const { return pages_; }

  /// Takes the addresses out of use. The caller has made sure that nothing on the device touches them. On failure the
  /// mapping stays as it was and can be unmapped again.
  [[nodiscard]] Result<void> unmap();
  /// The same for neighbouring mappings of one reservation, in address order, in one call: far cheaper than one each.
  /// On failure all stay as they were.
  [[nodiscard]] static Result<void> unmap_neighbours(std::span<Mapping* const> mappings);

private:
  friend class Reservation;
  Mapping(Device& device, DeviceAddress address, Pages pages) : device_(&device), address_(address), pages_(pages) {}

  Device* device_ = nullptr;
  DeviceAddress address_;
  Pages pages_;
};

class Reservation {
public:
  /// Reserves `size` bytes of addresses, a positive multiple of the page size; no memory is taken.
  [[nodiscard]] static Result<Reservation> create(Device& device, Bytes size);

  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  Device& device() const { return *device_; }
  DeviceAddress base() const { return base_; }
  Bytes size() const { return size_; }
  DeviceAddress at(Pages page) const { return base_ + Bytes(page); }
  bool contains(DeviceAddress address) const { return base_ <= address && address < base_ + size_; }

  /// Maps all of `physical` from page `at` on. A fresh mapping has no access: `allow_access` gives it.
  [[nodiscard]] Result<Mapping> map(Pages at, const Physical& physical);

  /// Lets the own device read and write `range`, which is mapped without holes. One call a run is the cheap way.
  [[nodiscard]] Result<void> allow_access(PageRange range);
  /// The same for every device in `devices`, the own one included only when it is named.
  [[nodiscard]] Result<void> allow_access(PageRange range, std::span<const DeviceIndex> devices);

  /// Gives the addresses back. Only when nothing is mapped in it.
  [[nodiscard]] Result<void> close();

private:
  Reservation(Device& device, DeviceAddress base, Bytes size) : device_(&device), base_(base), size_(size) {}

  Device* device_ = nullptr;
  DeviceAddress base_;
  Bytes size_;
};

static_assert(std::is_nothrow_move_constructible_v<Mapping> && !std::is_copy_constructible_v<Mapping>);
static_assert(std::is_nothrow_move_constructible_v<Reservation> && !std::is_copy_constructible_v<Reservation>);

} // namespace stillwake
