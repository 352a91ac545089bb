// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/state.h"

#include "allocator/driver/emulation/guard.h"
#include "allocator/driver/emulation/shared_ledger.h"
#include "allocator/driver/error_names.h"

#include <cstdio>

namespace stillwake {

using emulation::CompletionPointer;

Emulation::State::State(std::vector<std::shared_ptr<emulation::DeviceMemory>> memories,
                        std::shared_ptr<emulation::SharedLedger> shared)
    : memories_(std::move(memories)), shared_(std::move(shared)), addresses_(static_cast<int>(memories_.size())) {
  emulation::install_fault_handler();
  for (const auto& memory : memories_) {
    to_device_.push_back(std::make_unique<emulation::Bus>());
    to_host_.push_back(std::make_unique<emulation::Bus>());
    contexts_.push_back(std::make_unique<Context>(memory->device(), new_handle<CUcontext>()));
  }
}

Emulation::State::~State() {
  for (const auto& context : contexts_) {
    context->set_error(CUDA_ERROR_CONTEXT_IS_DESTROYED); // what has not begun is dropped
  }
  for (const auto& capture : captures_) {
    for (Stream* stream : capture->streams) {
      stream->capture.reset();
    }
  }
  contexts_.clear(); // joins the threads
}

emulation::DeviceMemory& Emulation::State::memory(DeviceIndex device) const {
  return *memories_.at(static_cast<std::size_t>(device.value()));
}

void Emulation::State::register_kernel(const char* name, KernelTwin twin, std::vector<std::size_t> parameter_sizes) {
  const std::lock_guard lock(mutex_);
  kernels_[name] = emulation::Kernel{twin, std::move(parameter_sizes)};
}

void Emulation::State::set_pattern(bool on) {
  for (const auto& memory : memories_) {
    memory->set_pattern(on);
  }
}

void Emulation::State::leave_share() {
  if (shared_ && process_ == ::getpid()) {
    shared_->leave();
  }
}

std::uint64_t Emulation::State::live_streams() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t count = 0;
  for (const auto& context : contexts_) {
    count += context->streams.size();
  }
  return count;
}

std::uint64_t Emulation::State::live_events() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

CUresult Emulation::State::init(unsigned flags) {
  if (flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  initialised_ = true;
  return CUDA_SUCCESS;
}

CUresult Emulation::State::driver_version(int* version) {
  if (version == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *version = 13000; // the driver whose answers this one gives
  return CUDA_SUCCESS;
}

CUresult Emulation::State::error_name(CUresult error, const char** name) {
  if (name == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *name = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : stillwake::error_name(error);
  return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Emulation::State::device_count(int* count) {
  if (count == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *count = static_cast<int>(memories_.size());
  return CUDA_SUCCESS;
}

CUresult Emulation::State::device_get(CUdevice* device, int ordinal) {
  if (device == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!device_exists(ordinal)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult Emulation::State::device_name(char* name, int length, CUdevice device) {
  if (!device_exists(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (name == nullptr || length <= 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::snprintf(name, static_cast<std::size_t>(length), "emulated device %d", device);
  return CUDA_SUCCESS;
}

CUresult Emulation::State::device_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!device_exists(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (value == nullptr || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
  case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: *value = 1; break;
  case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 2; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 1; break;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
  default: *value = 0; // HOST_NUMA_ID among them: every machine has a node 0
  }
  return CUDA_SUCCESS;
}

CUresult Emulation::State::device_total_memory(std::size_t* bytes, CUdevice device) {
  if (!device_exists(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (bytes == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *bytes = memory(DeviceIndex(device)).capacity().size();
  return CUDA_SUCCESS;
}

CUresult Emulation::State::device_can_access_peer(int* can, CUdevice device, CUdevice peer) {
  if (!device_exists(device) || !device_exists(peer)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (can == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *can = device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult Emulation::State::primary_context_retain(CUcontext* context, CUdevice device) {
  if (!device_exists(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  Context& primary = *contexts_[static_cast<std::size_t>(device)];
  if (primary.retained == 0 && primary.error() != CUDA_SUCCESS) {
    return primary.error(); // a dead context does not come back in this process
  }
  ++primary.retained;
  *context = primary.handle;
  return CUDA_SUCCESS;
}

CUresult Emulation::State::primary_context_release(CUdevice device) {
  if (!device_exists(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  Context& primary = *contexts_[static_cast<std::size_t>(device)];
  std::vector<emulation::StreamPointer> ended; // joined outside the lock
  {
    const std::lock_guard lock(mutex_);
    if (primary.retained == 0) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--primary.retained != 0) {
      return CUDA_SUCCESS;
    }
    const auto captures = captures_;
    for (const auto& capture : captures) {
      if (&capture->origin->context == &primary) {
        end(*capture);
      }
    }
    primary.for_each_stream([&](const emulation::StreamPointer& stream) { ended.push_back(stream); });
    primary.legacy.reset();
    primary.per_thread.clear();
    primary.streams.clear();
    primary.retiring.clear();
    std::erase_if(events_, [&](const auto& entry) { return &entry.second->context == &primary; });
  }
  ended.clear();
  addresses_.free_allocations(primary.device);
  return CUDA_SUCCESS;
}

CUresult Emulation::State::context_push(CUcontext context) {
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* const found = find_context(context);
  if (found == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  current_.push(*found);
  return CUDA_SUCCESS;
}

CUresult Emulation::State::context_pop(CUcontext* context) {
  Context* const popped = current_.pop();
  if (popped == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (context != nullptr) {
    *context = popped->handle;
  }
  return CUDA_SUCCESS;
}

CUresult Emulation::State::context_get_current(CUcontext* context) {
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Context* const top = current_.top();
  *context = top != nullptr ? top->handle : nullptr;
  return CUDA_SUCCESS;
}

CUresult Emulation::State::context_synchronize() {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  std::vector<CompletionPointer> unfinished;
  {
    const std::lock_guard lock(mutex_);
    if (const CUresult result = refuse_capturing_context(*context); result != CUDA_SUCCESS) {
      return result;
    }
    unfinished = context->unfinished();
  }
  return wait_for(unfinished, *context);
}

CUresult Emulation::State::context_record_event(CUcontext handle, CUevent event) {
  Context* const context = find_context(handle);
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (context->error() != CUDA_SUCCESS) {
    return context->error();
  }
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Event> found;
  if (const CUresult result = find_event(event, found); result != CUDA_SUCCESS) {
    return result;
  }
  if (&found->context != context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (const CUresult result = refuse_capturing_context(*context); result != CUDA_SUCCESS) {
    return result;
  }
  found->recorded = true;
  found->captured = false;
  found->recorded_at = std::chrono::steady_clock::now();
  found->work = context->unfinished();
  return CUDA_SUCCESS;
}

CUresult Emulation::State::enter(Context*& context) const {
  context = current_.top();
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return context->retained == 0 ? CUDA_ERROR_CONTEXT_IS_DESTROYED : context->error();
}

Emulation::State::Context* Emulation::State::find_context(CUcontext handle) {
  for (const auto& context : contexts_) {
    if (context->handle == handle) {
      return context.get();
    }
  }
  return nullptr;
}

CUresult Emulation::State::wait_for(const std::vector<CompletionPointer>& work, const Context& context) {
  for (const CompletionPointer& one : work) {
    one->wait();
  }
  return context.error();
}

} // namespace stillwake
