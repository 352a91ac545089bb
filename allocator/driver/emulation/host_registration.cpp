// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/host_registration.h"

#include "allocator/driver/emulation/process_map.h"

namespace stillwake::emulation {

CUresult HostRegistrations::add(void* pointer, std::size_t size, unsigned flags) {
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const auto first = reinterpret_cast<std::uint64_t>(pointer);
  if (first == 0 || size == 0 || first + size < first || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  const auto after = pieces_.upper_bound(first);
  const bool over_next = after != pieces_.end() && after->first < first + size;
  if (over_next || (after != pieces_.begin() && std::prev(after)->first + std::prev(after)->second > first)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  if (!is_readable_and_writable(first, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  pieces_[first] = size;
  return CUDA_SUCCESS;
}

CUresult HostRegistrations::check_removable(void* pointer) const {
  const auto first = reinterpret_cast<std::uint64_t>(pointer);
  if (first == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  if (pieces_.count(first) != 0) {
    return CUDA_SUCCESS;
  }
  const auto after = pieces_.upper_bound(first);
  const bool inside = after != pieces_.begin() && std::prev(after)->first + std::prev(after)->second > first;
  return inside ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult HostRegistrations::remove(void* pointer) {
  const std::lock_guard lock(mutex_);
  return pieces_.erase(reinterpret_cast<std::uint64_t>(pointer)) == 1 ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

HostRegistrations::Kind HostRegistrations::kind(const void* pointer, std::size_t size) const {
  const auto first = reinterpret_cast<std::uint64_t>(pointer);
  const std::lock_guard lock(mutex_);
  const auto after = pieces_.upper_bound(first);
  if (after == pieces_.begin()) {
    return Kind::kPageable;
  }
  const std::uint64_t end = std::prev(after)->first + std::prev(after)->second;
  if (end <= first) {
    return Kind::kPageable;
  }
  return size <= end - first ? Kind::kPinned : Kind::kCut;
}

std::uint64_t HostRegistrations::count() const {
  const std::lock_guard lock(mutex_);
  return pieces_.size();
}

} // namespace stillwake::emulation
