// SPDX-License-Identifier: Apache-2.0
// Calls about memory. Those of virtual memory know no context: they work without a current one, while a stream
// captures, and after a context died.
#include "allocator/driver/emulation/state.h"

namespace stillwake {

using emulation::CompletionPointer;

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 62; // sums of two such sizes do not wrap

} // namespace

CUresult Emulation::State::memory_info(std::size_t* free, std::size_t* total) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  if (free == nullptr || total == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Bytes capacity = memory(context->device).capacity();
  const Bytes used = memory(context->device).used();
  *total = capacity.size();
  *free = used < capacity ? (capacity - used).size() : 0;
  return CUDA_SUCCESS;
}

CUresult Emulation::State::memory_allocate(CUdeviceptr* address, std::size_t size) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  {
    const std::lock_guard lock(mutex_);
    if (const CUresult result = refuse_unsafe(); result != CUDA_SUCCESS) {
      return result;
    }
  }
  if (address == nullptr || size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (size > kMostBytes) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const auto& memory = memories_[static_cast<std::size_t>(context->device.value())];
  emulation::Claim claim;
  if (const CUresult result = memory->take(round_up(Bytes(size), kPageBytes), claim); result != CUDA_SUCCESS) {
    return result;
  }
  return addresses_.allocate(address, size, std::make_shared<emulation::Physical>(memory, claim));
}

CUresult Emulation::State::memory_free(CUdeviceptr address) {
  Context* const current = current_.top();
  if (current != nullptr && current->error() != CUDA_SUCCESS) {
    return current->error();
  }
  if (address == 0) {
    return CUDA_SUCCESS;
  }
  const std::optional<DeviceIndex> device = addresses_.device_of_allocation(address);
  if (!device) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The driver, too, waits until nothing that was queued can still use the memory.
  Context& owner = *contexts_[static_cast<std::size_t>(device->value())];
  std::vector<CompletionPointer> unfinished;
  {
    const std::lock_guard lock(mutex_);
    if (const CUresult result = refuse_unsafe(); result != CUDA_SUCCESS) {
      return result;
    }
    unfinished = owner.unfinished();
  }
  if (const CUresult result = wait_for(unfinished, owner); result != CUDA_SUCCESS) {
    return result;
  }
  return addresses_.free_allocation(address);
}

CUresult Emulation::State::address_reserve(CUdeviceptr* address, std::size_t size, std::size_t alignment, CUdeviceptr,
                                           unsigned long long flags) {
  // The wish for an address is not granted: the driver need not, either.
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : addresses_.reserve(address, size, alignment);
}

CUresult Emulation::State::address_free(CUdeviceptr address, std::size_t size) {
  return addresses_.free(address, size);
}

CUresult Emulation::State::memory_create(CUmemGenericAllocationHandle* handle, std::size_t size,
                                         const CUmemAllocationProp* properties, unsigned long long flags) {
  if (handle == nullptr || properties == nullptr || flags != 0 || size == 0 || size % kPageBytes.size() != 0 ||
      properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!device_exists(properties->location.id)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (size > kMostBytes) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const auto& memory = memories_[static_cast<std::size_t>(properties->location.id)];
  emulation::Claim claim;
  if (const CUresult result = memory->take(Bytes(size), claim); result != CUDA_SUCCESS) {
    return result;
  }
  *handle = addresses_.add_handle(std::make_shared<emulation::Physical>(memory, claim));
  return CUDA_SUCCESS;
}

CUresult Emulation::State::memory_release(CUmemGenericAllocationHandle handle) {
  return addresses_.release_handle(handle);
}

CUresult Emulation::State::memory_map(CUdeviceptr address, std::size_t size, std::size_t offset,
                                      CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : addresses_.map(address, size, offset, handle);
}

CUresult Emulation::State::memory_unmap(CUdeviceptr address, std::size_t size) {
  return addresses_.unmap(address, size);
}

CUresult Emulation::State::memory_set_access(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access,
                                             std::size_t count) {
  return addresses_.set_access(address, size, access, count);
}

CUresult Emulation::State::memory_granularity(std::size_t* granularity, const CUmemAllocationProp* properties,
                                              CUmemAllocationGranularity_flags option) {
  if (granularity == nullptr || properties == nullptr ||
      (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *granularity = kPageBytes.size();
  return CUDA_SUCCESS;
}

CUresult Emulation::State::host_register(void* pointer, std::size_t size, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  {
    const std::lock_guard lock(mutex_);
    if (const CUresult result = refuse_unsafe(); result != CUDA_SUCCESS) {
      return result;
    }
  }
  return registrations_.add(pointer, size, flags);
}

CUresult Emulation::State::host_unregister(void* pointer) {
  Context* const current = current_.top();
  if (current != nullptr && current->error() != CUDA_SUCCESS) {
    return current->error();
  }
  std::vector<CompletionPointer> unfinished;
  {
    const std::lock_guard lock(mutex_);
    if (const CUresult result = refuse_unsafe(); result != CUDA_SUCCESS) {
      return result;
    }
    if (const CUresult result = registrations_.check_removable(pointer); result != CUDA_SUCCESS) {
      return result;
    }
    // As the driver does: what was queued may still copy from it.
    for (const auto& context : contexts_) {
      for (CompletionPointer& one : context->unfinished()) {
        unfinished.push_back(std::move(one));
      }
    }
  }
  for (const CompletionPointer& one : unfinished) {
    one->wait();
  }
  return registrations_.remove(pointer);
}

} // namespace stillwake
