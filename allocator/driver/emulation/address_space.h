// SPDX-License-Identifier: Apache-2.0
// The AddressSpace is the device addresses of a process: reservations, what is mapped in them, and which device may do
// what there. An address is an address of this process; a mapping is a piece of a device's file at it.
// Whatever the hardware refuses (docs/design/emulated-driver.md) is refused with the same error, and changes nothing.
#pragma once

#include "allocator/driver/emulation/device_memory.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace stillwake::emulation {

/// What a piece of work wants of device memory.
enum class Use {
  kRead,     ///< a copy reads it
  kWrite,    ///< a copy writes it
  kOverwrite ///< a memset, which unlike a copy needs a device that may reach the memory itself
};

/// Any thread. The addresses of one emulation; all of them are given back by the destructor.
class AddressSpace {
public:
  explicit AddressSpace(int devices) : devices_(devices) {}
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  CUresult reserve(CUdeviceptr* address, std::size_t size, std::size_t alignment);
  CUresult free(CUdeviceptr address, std::size_t size);

  CUmemGenericAllocationHandle add_handle(std::shared_ptr<Physical> physical);
  CUresult release_handle(CUmemGenericAllocationHandle handle);

  CUresult map(CUdeviceptr address, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle);
  CUresult unmap(CUdeviceptr address, std::size_t size);
  CUresult set_access(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access, std::size_t count);

  /// cuMemAlloc: a reservation that is mapped whole and readable for `size` bytes, to the byte.
  CUresult allocate(CUdeviceptr* address, std::size_t size, std::shared_ptr<Physical> physical);
  std::optional<DeviceIndex> device_of_allocation(CUdeviceptr address) const;
  CUresult free_allocation(CUdeviceptr address);
  /// Frees what cuMemAlloc gave out on the device: the end of its context.
  void free_allocations(DeviceIndex device);

  /// Whether the device may use the range as it is mapped now.
  bool usable(DeviceIndex device, CUdeviceptr address, std::size_t size, Use use) const;

  std::uint64_t live_handles() const;
  std::uint64_t live_reservations() const;

private:
  struct Reservation {
    std::uint64_t size = 0;
    std::uint64_t allocated = 0; ///< the bytes asked of cuMemAlloc; 0 for a reservation
    void* raw = nullptr;         ///< what mmap gave, before aligning
    std::size_t raw_size = 0;
  };
  struct Mapping {
    std::shared_ptr<Physical> physical;
    std::uint64_t readers = 0; ///< a bit a device
    std::uint64_t writers = 0;
    std::uint64_t size() const { return physical->size(); }
  };
  using Reservations = std::map<std::uint64_t, Reservation>;
  using Mappings = std::map<std::uint64_t, Mapping>;

  // All with mutex_ held.
  CUresult reserve_locked(std::uint64_t& address, std::uint64_t size, std::uint64_t alignment);
  Reservations::const_iterator reservation_around(std::uint64_t address, std::uint64_t size) const;
  Mappings::iterator first_mapping_touching(std::uint64_t address);
  CUresult map_locked(std::uint64_t address, std::shared_ptr<Physical> physical);
  bool is_whole_mappings(std::uint64_t address, std::uint64_t size) const;

  const int devices_;
  mutable std::mutex mutex_;
  Reservations reservations_;
  Mappings mappings_;
  // Handles that were not released, and by weak pointer those that only a mapping still holds.
  std::unordered_map<CUmemGenericAllocationHandle, std::shared_ptr<Physical>> handles_;
  std::unordered_map<const Physical*, std::weak_ptr<Physical>> made_;
  CUmemGenericAllocationHandle next_handle_ = 1;
};

} // namespace stillwake::emulation
