// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/address_space.h"

#include <sys/mman.h>

#include <vector>

namespace stillwake::emulation {
namespace {

constexpr std::uint64_t kGranularity = kPageBytes.count();

bool aligned(std::uint64_t value) { return value % kGranularity == 0; }

// A reservation that holds nothing. Also how a mapping is taken away: one call, and no moment without our reservation.
bool place_nothing(std::uint64_t address, std::uint64_t size) {
  void* at = reinterpret_cast<void*>(address);
  return ::mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED &&
         ::madvise(at, size, MADV_DONTFORK) == 0;
}

} // namespace

AddressSpace::~AddressSpace() {
  for (const auto& [address, reservation] : reservations_) {
    ::munmap(reservation.raw, reservation.raw_size);
  }
}

CUresult AddressSpace::reserve(CUdeviceptr* address, std::size_t size, std::size_t alignment) {
  if (address == nullptr || size == 0 || !aligned(size) || (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  std::uint64_t at = 0;
  const CUresult result = reserve_locked(at, size, alignment);
  if (result == CUDA_SUCCESS) {
    *address = at;
  }
  return result;
}

CUresult AddressSpace::reserve_locked(std::uint64_t& address, std::uint64_t size, std::uint64_t alignment) {
  alignment = std::max(alignment, kGranularity);
  const std::uint64_t raw_size = size + alignment;
  if (raw_size < size) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  void* raw = ::mmap(nullptr, raw_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ::madvise(raw, raw_size, MADV_DONTFORK);
  address = (reinterpret_cast<std::uint64_t>(raw) + alignment - 1) / alignment * alignment;
  reservations_[address] = Reservation{size, 0, raw, raw_size};
  return CUDA_SUCCESS;
}

CUresult AddressSpace::free(CUdeviceptr address, std::size_t size) {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.size != size || found->second.allocated != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::munmap(found->second.raw, found->second.raw_size);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

CUmemGenericAllocationHandle AddressSpace::add_handle(std::shared_ptr<Physical> physical) {
  const std::lock_guard lock(mutex_);
  made_[physical.get()] = physical;
  const CUmemGenericAllocationHandle handle = next_handle_++;
  handles_[handle] = std::move(physical);
  return handle;
}

CUresult AddressSpace::release_handle(CUmemGenericAllocationHandle handle) {
  std::shared_ptr<Physical> last; // given back outside the lock: punching takes time
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  last = std::move(found->second);
  handles_.erase(found);
  if (last.use_count() == 1) {
    made_.erase(last.get());
  }
  return CUDA_SUCCESS;
}

CUresult AddressSpace::map(CUdeviceptr address, std::size_t size, std::size_t offset,
                           CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end() || size == 0 || !aligned(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (offset != 0 || size != found->second->size()) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const auto around = reservation_around(address, size);
  if (around == reservations_.end() || around->second.allocated != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto touching = first_mapping_touching(address);
  if (touching != mappings_.end() && touching->first < address + size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return map_locked(address, found->second);
}

CUresult AddressSpace::map_locked(std::uint64_t address, std::shared_ptr<Physical> physical) {
  void* at = reinterpret_cast<void*>(address);
  void* mapped = ::mmap(at, physical->size(), PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file(),
                        static_cast<off_t>(physical->offset()));
  if (mapped == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY; // the reservation is as it was
  }
  // A child must not see the device's memory: a shared mapping would be its parent's own bytes.
  if (::madvise(at, physical->size(), MADV_DONTFORK) != 0) {
    STILLWAKE_CHECK(place_nothing(address, physical->size()));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  mappings_[address] = Mapping{std::move(physical), 0, 0};
  return CUDA_SUCCESS;
}

CUresult AddressSpace::unmap(CUdeviceptr address, std::size_t size) {
  std::vector<std::shared_ptr<Physical>> let_go; // outside the lock, as in release_handle
  const std::lock_guard lock(mutex_);
  const auto around = reservation_around(address, std::max<std::uint64_t>(size, 1));
  if (size == 0 || around == reservations_.end() || around->second.allocated != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto first = first_mapping_touching(address);
  const auto end = mappings_.lower_bound(address + size);
  if (first == end) {
    return CUDA_SUCCESS; // the hardware, too, unmaps nothing with success
  }
  if (first->first < address || std::prev(end)->first + std::prev(end)->second.size() > address + size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint64_t from = first->first;
  const std::uint64_t to = std::prev(end)->first + std::prev(end)->second.size();
  if (!place_nothing(from, to - from)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (auto mapping = first; mapping != end; ++mapping) {
    let_go.push_back(std::move(mapping->second.physical));
  }
  mappings_.erase(first, end);
  for (const auto& physical : let_go) {
    if (physical.use_count() == 1) {
      made_.erase(physical.get());
    }
  }
  return CUDA_SUCCESS;
}

CUresult AddressSpace::set_access(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access,
                                  std::size_t count) {
  if (size == 0 || access == nullptr || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    const bool known = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                       access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                       access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (access[i].location.id < 0 || access[i].location.id >= devices_ || !known) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const std::lock_guard lock(mutex_);
  const auto around = reservation_around(address, size);
  if (around == reservations_.end() || around->second.allocated != 0 || !is_whole_mappings(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto end = mappings_.lower_bound(address + size);
  // Neighbours that get the same protection are changed by one system call.
  std::uint64_t run = 0, run_end = 0;
  int run_protection = PROT_NONE;
  const auto apply = [&] {
    return run == run_end || ::mprotect(reinterpret_cast<void*>(run), run_end - run, run_protection) == 0;
  };
  for (auto mapping = mappings_.lower_bound(address); mapping != end; ++mapping) {
    Mapping& at = mapping->second;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bit = 1ull << access[i].location.id;
      at.readers = access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE ? at.readers | bit : at.readers & ~bit;
      at.writers = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? at.writers | bit : at.writers & ~bit;
    }
    const int protection = at.writers != 0 ? PROT_READ | PROT_WRITE : (at.readers != 0 ? PROT_READ : PROT_NONE);
    if (mapping->first != run_end || protection != run_protection) {
      if (!apply()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      run = mapping->first;
      run_protection = protection;
    }
    run_end = mapping->first + at.size();
  }
  return apply() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

AddressSpace::Reservations::const_iterator AddressSpace::reservation_around(std::uint64_t address,
                                                                            std::uint64_t size) const {
  auto found = reservations_.upper_bound(address);
  if (found == reservations_.begin()) {
    return reservations_.end();
  }
  --found;
  const std::uint64_t offset = address - found->first;
  return offset < found->second.size && size <= found->second.size - offset ? found : reservations_.end();
}

AddressSpace::Mappings::iterator AddressSpace::first_mapping_touching(std::uint64_t address) {
  auto found = mappings_.upper_bound(address);
  if (found != mappings_.begin()) {
    const auto before = std::prev(found);
    if (before->first + before->second.size() > address) {
      return before;
    }
  }
  return found;
}

// Whether the range is one or more whole mappings without a hole. (The hardware lets a hole inside pass, and refuses
// one at the end: whoever sets access where nothing is mapped has lost count, so any hole is refused here.)
bool AddressSpace::is_whole_mappings(std::uint64_t address, std::uint64_t size) const {
  std::uint64_t at = address;
  for (auto mapping = mappings_.find(address);
       mapping != mappings_.end() && mapping->first == at && at < address + size; ++mapping) {
    at += mapping->second.size();
  }
  return at == address + size;
}

CUresult AddressSpace::allocate(CUdeviceptr* address, std::size_t size, std::shared_ptr<Physical> physical) {
  const std::uint64_t bit = 1ull << physical->device().value();
  const std::lock_guard lock(mutex_);
  std::uint64_t at = 0;
  if (const CUresult result = reserve_locked(at, physical->size(), kGranularity); result != CUDA_SUCCESS) {
    return result;
  }
  const std::uint64_t whole = physical->size();
  CUresult result = map_locked(at, std::move(physical));
  if (result == CUDA_SUCCESS && ::mprotect(reinterpret_cast<void*>(at), whole, PROT_READ | PROT_WRITE) != 0) {
    mappings_.erase(at);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) {
    const Reservation& reservation = reservations_[at];
    ::munmap(reservation.raw, reservation.raw_size);
    reservations_.erase(at);
    return result;
  }
  reservations_[at].allocated = size;
  mappings_[at].readers = bit;
  mappings_[at].writers = bit;
  *address = at;
  return CUDA_SUCCESS;
}

std::optional<DeviceIndex> AddressSpace::device_of_allocation(CUdeviceptr address) const {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.allocated == 0) {
    return std::nullopt;
  }
  return mappings_.at(address).physical->device();
}

void AddressSpace::free_allocations(DeviceIndex device) {
  std::vector<CUdeviceptr> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, reservation] : reservations_) {
      if (reservation.allocated != 0 && mappings_.at(address).physical->device() == device) {
        all.push_back(address);
      }
    }
  }
  for (CUdeviceptr address : all) {
    free_allocation(address);
  }
}

CUresult AddressSpace::free_allocation(CUdeviceptr address) {
  std::shared_ptr<Physical> last; // outside the lock, as in release_handle
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.allocated == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  last = std::move(mappings_[address].physical);
  mappings_.erase(address);
  ::munmap(found->second.raw, found->second.raw_size);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

bool AddressSpace::usable(DeviceIndex device, CUdeviceptr address, std::size_t size, Use use) const {
  const std::lock_guard lock(mutex_);
  const auto around = reservation_around(address, size);
  if (around == reservations_.end()) {
    return false;
  }
  const std::uint64_t bit = 1ull << device.value();
  if (around->second.allocated != 0) {
    // The driver copies between cuMemAlloc memory of any two devices; only its own device may overwrite it in place.
    const bool own = (mappings_.at(around->first).readers & bit) != 0;
    return address - around->first + size <= around->second.allocated && (own || use != Use::kOverwrite);
  }
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) {
    return false;
  }
  --mapping;
  const std::uint64_t end = address + size;
  for (std::uint64_t at = address; at < end; ++mapping) {
    if (mapping == mappings_.end() || mapping->first > at || mapping->first + mapping->second.size() <= at ||
        ((use == Use::kRead ? mapping->second.readers : mapping->second.writers) & bit) == 0) {
      return false;
    }
    at = mapping->first + mapping->second.size();
  }
  return true;
}

std::uint64_t AddressSpace::live_handles() const {
  const std::lock_guard lock(mutex_);
  return made_.size();
}

std::uint64_t AddressSpace::live_reservations() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t count = 0;
  for (const auto& [address, reservation] : reservations_) {
    count += reservation.allocated == 0 ? 1 : 0;
  }
  return count;
}

} // namespace stillwake::emulation
