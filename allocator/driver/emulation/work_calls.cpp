// SPDX-License-Identifier: Apache-2.0
// Copies, memsets, kernels and host functions. Arguments are checked against what is mapped when the call is made, as
// the driver does, and again when the work runs: what was unmapped in between is the context's end. The codes are the
// hardware's: a copy engine says LAUNCH_FAILED, a kernel (a memset is one) ILLEGAL_ADDRESS.
#include "allocator/driver/emulation/guard.h"
#include "allocator/driver/emulation/state.h"

#include <cstring>
#include <thread>

namespace stillwake {

using emulation::CompletionPointer;
using emulation::HostRegistrations;
using emulation::StreamPointer;
using emulation::Use;

namespace {

// From pageable memory the driver takes as much at once before it returns; from there on it copies while we wait.
constexpr std::size_t kStaged = 2u << 20;

bool move_bytes(std::uint64_t to, std::uint64_t from, std::size_t size) {
  return emulation::guarded(
      [&] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size); });
}

} // namespace

template <class Prepare> CUresult Emulation::State::submit_on(CUstream handle, bool synchronous, Prepare&& prepare) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  StreamPointer stream;
  CompletionPointer done;
  {
    const std::lock_guard lock(mutex_);
    CUresult result = find_stream(handle, *context, stream);
    if (result == CUDA_SUCCESS) {
      result = refuse_implicit(*stream, true);
    }
    Operation operation;
    if (result == CUDA_SUCCESS) {
      result = prepare(stream->context.device, stream->capture != nullptr, operation);
    }
    if (result == CUDA_SUCCESS && operation) {
      result = submit(*stream, std::move(operation), {}, &done);
    }
    if (result != CUDA_SUCCESS) {
      return result;
    }
  }
  if (synchronous && done) {
    done->wait();
    return stream->context.error();
  }
  return CUDA_SUCCESS;
}

CUresult Emulation::State::copy_to_device(CUdeviceptr to, const void* from, std::size_t size, CUstream stream) {
  const HostRegistrations::Kind kind = registrations_.kind(from, size);
  const bool synchronous = kind == HostRegistrations::Kind::kPageable && size > kStaged;
  return submit_on(stream, synchronous, [&](DeviceIndex device, bool capturing, Operation& operation) {
    if (size == 0) {
      return CUDA_SUCCESS;
    }
    if (from == nullptr || kind == HostRegistrations::Kind::kCut || !usable(device, to, size, Use::kWrite)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<std::vector<char>> staged;
    if (kind == HostRegistrations::Kind::kPageable && size <= kStaged && !capturing) {
      const auto* bytes = static_cast<const char*>(from);
      staged = std::make_shared<std::vector<char>>(bytes, bytes + size);
    }
    emulation::Bus& bus = *to_device_[static_cast<std::size_t>(device.value())];
    operation = timed([this, device, to, from, size, staged, &bus] {
      const TimePoint over = bus.book(Bytes(size), bandwidth);
      const void* const source = staged ? staged->data() : from;
      if (!usable(device, to, size, Use::kWrite) || !move_bytes(to, reinterpret_cast<std::uint64_t>(source), size)) {
        return CUDA_ERROR_LAUNCH_FAILED;
      }
      std::this_thread::sleep_until(over);
      return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
  });
}

CUresult Emulation::State::copy_to_host(void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
  const HostRegistrations::Kind kind = registrations_.kind(to, size);
  const bool synchronous = kind == HostRegistrations::Kind::kPageable;
  return submit_on(stream, synchronous, [&](DeviceIndex device, bool, Operation& operation) {
    if (size == 0) {
      return CUDA_SUCCESS;
    }
    if (to == nullptr || kind == HostRegistrations::Kind::kCut || !usable(device, from, size, Use::kRead)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    emulation::Bus& bus = *to_host_[static_cast<std::size_t>(device.value())];
    operation = timed([this, device, to, from, size, &bus] {
      const TimePoint over = bus.book(Bytes(size), bandwidth);
      if (!usable(device, from, size, Use::kRead) || !move_bytes(reinterpret_cast<std::uint64_t>(to), from, size)) {
        return CUDA_ERROR_LAUNCH_FAILED;
      }
      std::this_thread::sleep_until(over);
      return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
  });
}

CUresult Emulation::State::copy_on_device(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  return submit_on(stream, false, [&](DeviceIndex device, bool, Operation& operation) {
    if (size == 0) {
      return CUDA_SUCCESS;
    }
    if (!usable(device, to, size, Use::kWrite) || !usable(device, from, size, Use::kRead)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    operation = timed([this, device, to, from, size] {
      const bool there = usable(device, to, size, Use::kWrite) && usable(device, from, size, Use::kRead);
      return there && move_bytes(to, from, size) ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
    });
    return CUDA_SUCCESS;
  });
}

CUresult Emulation::State::set_bytes(CUdeviceptr to, unsigned char value, std::size_t size, CUstream stream) {
  return submit_on(stream, false, [&](DeviceIndex device, bool capturing, Operation& operation) {
    if (size == 0) {
      return CUDA_SUCCESS;
    }
    // A captured memset is not checked before it runs.
    if (!capturing && !usable(device, to, size, Use::kOverwrite)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    operation = timed([this, device, to, value, size] {
      const bool set = usable(device, to, size, Use::kOverwrite) &&
                       emulation::guarded([&] { std::memset(reinterpret_cast<void*>(to), value, size); });
      return set ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
    });
    return CUDA_SUCCESS;
  });
}

CUresult Emulation::State::launch_host_function(CUstream stream, CUhostFn function, void* argument) {
  return submit_on(stream, false, [&](DeviceIndex, bool, Operation& operation) {
    if (function == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    operation = [function, argument] {
      emulation::in_host_function() = true;
      function(argument);
      emulation::in_host_function() = false;
      return CUDA_SUCCESS;
    };
    return CUDA_SUCCESS;
  });
}

CUresult Emulation::State::launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                                         CUstream stream, void** parameters, void** extra) {
  return submit_on(stream, false, [&](DeviceIndex, bool, Operation& operation) {
    const auto found = functions_.find(function);
    if (found == functions_.end()) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const unsigned grid[3] = {grid_x, grid_y, grid_z};
    const unsigned block[3] = {block_x, block_y, block_z};
    constexpr unsigned kMostX = 0x7FFFFFFF, kMostYZ = 0xFFFF, kMostThreads = 1024;
    const bool grid_fits = grid_x - 1 < kMostX && grid_y - 1 < kMostYZ && grid_z - 1 < kMostYZ;
    const bool block_fits = block_x - 1 < kMostThreads && block_y - 1 < kMostThreads && block_z - 1 < 64 &&
                            block_x * block_y * block_z <= kMostThreads;
    const bool given = parameters != nullptr || found->second.parameter_sizes.empty();
    if (!grid_fits || !block_fits || !given || extra != nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto launch = std::make_shared<emulation::Launch>(found->second, grid, block, parameters);
    operation = timed([launch = std::move(launch)] {
      return emulation::guarded([&] { launch->run(); }) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
    });
    return CUDA_SUCCESS;
  });
}

CUresult Emulation::State::module_load(CUmodule* module, const void* image) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  if (module == nullptr || image == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  *module = new_handle<CUmodule>();
  modules_[*module];
  return CUDA_SUCCESS;
}

CUresult Emulation::State::module_unload(CUmodule module) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  const std::lock_guard lock(mutex_);
  if (const CUresult result = refuse_unsafe(); result != CUDA_SUCCESS) {
    return result;
  }
  const auto found = modules_.find(module);
  if (found == modules_.end()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  for (CUfunction function : found->second) {
    functions_.erase(function); // launches that were queued have copies
  }
  modules_.erase(found);
  return CUDA_SUCCESS;
}

CUresult Emulation::State::module_get_function(CUfunction* function, CUmodule module, const char* name) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  if (function == nullptr || name == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  const auto found = modules_.find(module);
  if (found == modules_.end()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const auto kernel = kernels_.find(name);
  if (kernel == kernels_.end()) {
    return CUDA_ERROR_NOT_FOUND;
  }
  *function = new_handle<CUfunction>();
  functions_[*function] = kernel->second;
  found->second.push_back(*function);
  return CUDA_SUCCESS;
}

bool Emulation::State::usable(DeviceIndex device, CUdeviceptr address, std::size_t size, Use use) const {
  // Pinned host memory has the same address on the device.
  return addresses_.usable(device, address, size, use) ||
         registrations_.kind(reinterpret_cast<const void*>(address), size) == HostRegistrations::Kind::kPinned;
}

Emulation::State::Operation Emulation::State::timed(Operation operation) {
  return [this, operation = std::move(operation)] {
    if (const Duration wait(delay.load()); wait > Duration::zero()) {
      std::this_thread::sleep_for(wait);
    }
    return operation();
  };
}

} // namespace stillwake
