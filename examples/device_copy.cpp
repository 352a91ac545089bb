// SPDX-License-Identifier: Apache-2.0
#include "examples/device_copy.h"

#include "allocator/driver/driver_layer.h"

#include <sys/mman.h>

#include <optional>
#include <string>
#include <utility>

namespace example {

using stillwake::Bytes;
using stillwake::CallId;
using stillwake::Device;
using stillwake::DeviceAddress;
using stillwake::DeviceIndex;
using stillwake::Driver;
using stillwake::DriverTable;
using stillwake::failure;
using stillwake::OwnedStream;
using stillwake::Result;

struct CopyLane::State {
  Device* device = nullptr;
  OwnedStream stream;
  void* buffer = nullptr;
  Bytes capacity;
  bool pinned = false;

  ~State() {
    if (buffer == nullptr) {
      return;
    }
    if (pinned) {
      const stillwake::ContextScope scope(*device);
      static_cast<void>(device->table().cuMemHostUnregister(buffer)); // nobody is left to be told
    }
    ::munmap(buffer, capacity.size());
  }
};

CopyLane::CopyLane(std::unique_ptr<State> state) : state_(std::move(state)) {}
CopyLane::CopyLane(CopyLane&&) noexcept = default;
CopyLane::~CopyLane() = default;

Result<CopyLane> CopyLane::open(Driver& driver, DeviceIndex index, Bytes buffer) {
  auto device = driver.device(index);
  STILLWAKE_TRY(device);
  auto state = std::make_unique<State>();
  state->device = *device;
  state->capacity = buffer;
  auto stream = OwnedStream::create(**device);
  STILLWAKE_TRY(stream);
  state->stream = *std::move(stream);

  void* memory = ::mmap(nullptr, buffer.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return failure(stillwake::ErrorCode::kOutOfHostMemory,
                   "no " + std::to_string(buffer.count()) + " bytes of host memory for a copy buffer");
  }
  state->buffer = memory;
  ::madvise(memory, buffer.size(), MADV_HUGEPAGE);
  STILLWAKE_ENTER(**device);
  STILLWAKE_TRY(
      STILLWAKE_CALL((*device)->table(), "pinning a copy buffer", cuMemHostRegister, memory, buffer.size(), 0));
  state->pinned = true;
  return CopyLane(std::move(state));
}

std::byte* CopyLane::buffer() const { return static_cast<std::byte*>(state_->buffer); }
Bytes CopyLane::capacity() const { return state_->capacity; }
stillwake::Stream CopyLane::stream() const { return state_->stream.get(); }

Result<void> CopyLane::to_device(void* device, Bytes at, Bytes size) {
  STILLWAKE_ENTER(*state_->device);
  return STILLWAKE_CALL(state_->device->table(), "copying to the device", cuMemcpyHtoDAsync,
                        DeviceAddress(device).value(), buffer() + at.count(), size.size(), stream());
}

Result<void> CopyLane::to_host(Bytes at, const void* device, Bytes size) {
  STILLWAKE_ENTER(*state_->device);
  return STILLWAKE_CALL(state_->device->table(), "copying from the device", cuMemcpyDtoHAsync, buffer() + at.count(),
                        DeviceAddress(device).value(), size.size(), stream());
}

Result<void> CopyLane::fill(void* device, unsigned char value, Bytes size) {
  STILLWAKE_ENTER(*state_->device);
  return STILLWAKE_CALL(state_->device->table(), "filling device memory", cuMemsetD8Async,
                        DeviceAddress(device).value(), value, size.size(), stream());
}

Result<void> CopyLane::synchronize() { return state_->stream.synchronize(); }

Result<NeighbourMemory> NeighbourMemory::take(Driver& driver, DeviceIndex index, Bytes size) {
  auto device = driver.device(index);
  STILLWAKE_TRY(device);
  STILLWAKE_ENTER(**device);
  DriverTable& table = (*device)->table();
  CUdeviceptr address = 0;
  if (const CUresult result = table.cuMemAlloc(&address, size.size()); result != CUDA_SUCCESS) {
    return failure(stillwake::driver_error(table, CallId::cuMemAlloc, result,
                                           "a neighbour asked for " + std::to_string(size.count()) + " bytes"));
  }
  return NeighbourMemory(driver, index, DeviceAddress(address).pointer());
}

NeighbourMemory::NeighbourMemory(NeighbourMemory&& other) noexcept
    : driver_(other.driver_), device_(other.device_), pointer_(std::exchange(other.pointer_, nullptr)) {}

NeighbourMemory::~NeighbourMemory() {
  if (pointer_ == nullptr) {
    return;
  }
  if (auto device = driver_->device(device_)) {
    const stillwake::ContextScope scope(**device);
    static_cast<void>((*device)->table().cuMemFree(DeviceAddress(pointer_).value()));
  }
}

} // namespace example
