// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/device.h"

#include "allocator/base/base.h"
#include "allocator/driver/try_twice.h"

#include <array>
#include <utility>

namespace stillwake {
namespace {

// -1 where the driver does not know the attribute: older than our headers, hence without the feature.
Result<int> attribute(DriverTable& table, CUdevice handle, CUdevice_attribute which) {
  int value = -1;
  Result<void> asked =
      STILLWAKE_CALL(table, "asking what a device can do", cuDeviceGetAttribute, &value, which, handle);
  if (asked) {
    return value;
  }
  if (asked.error().driver_error == CUDA_ERROR_INVALID_VALUE) {
    return -1;
  }
  return failure(std::move(asked).error());
}

Result<void> push(Device& device) {
  STILLWAKE_TRY(in_reach());
  return STILLWAKE_CALL(device.table(), "entering the device's context", cuCtxPushCurrent, device.context());
}

} // namespace

Result<std::unique_ptr<Device>> Device::open(DriverTable& table, DeviceIndex index) {
  const std::string which = "device " + std::to_string(index.value());
  std::unique_ptr<Device> device(new Device(table, index));
  STILLWAKE_TRY(STILLWAKE_CALL(table, "finding a device", cuDeviceGet, &device->handle_, index.value()));
  std::array<char, 256> name{};
  STILLWAKE_TRY(STILLWAKE_CALL(table, "reading a device's name", cuDeviceGetName, name.data(),
                               static_cast<int>(name.size()), device->handle_));
  device->name_ = name.data();
  std::size_t total = 0;
  STILLWAKE_TRY(STILLWAKE_CALL(table, "reading a device's memory size", cuDeviceTotalMem, &total, device->handle_));
  device->total_memory_ = Bytes(total);

  const auto virtual_memory =
      attribute(table, device->handle_, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  STILLWAKE_TRY(virtual_memory);
  device->features_.virtual_memory = *virtual_memory == 1;
  device->features_.context_event = static_cast<bool>(table.cuCtxRecordEvent);
  const auto numa_node = attribute(table, device->handle_, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  STILLWAKE_TRY(numa_node);
  device->features_.host_numa_node = *numa_node;
  if (!device->features_.virtual_memory) {
    return failure(Error{ErrorCode::kDriverTooOld, 0, "",
                         which + " (" + device->name_ + ") has no virtual memory management, which Stillwake needs",
                         note_of(table, CallId::cuDeviceGetAttribute)});
  }

  CUmemAllocationProp memory = {};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->handle_};
  std::size_t granularity = 0;
  STILLWAKE_TRY(STILLWAKE_CALL(table, "reading a device's granularity", cuMemGetAllocationGranularity, &granularity,
                               &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  if (granularity == 0 || kPageBytes.count() % granularity != 0) {
    return failure(ErrorCode::kDriverTooOld, which + " (" + device->name_ + ") hands out memory in pieces of " +
                                                 exact(Bytes(granularity)) + "; Stillwake needs pages of " +
                                                 exact(kPageBytes));
  }
  STILLWAKE_TRY(STILLWAKE_CALL(table, "retaining a device's primary context", cuDevicePrimaryCtxRetain,
                               &device->context_, device->handle_));
  return device;
}

Device::~Device() {
  if (context_ == nullptr || driver_is_out_of_reach()) {
    return;
  }
  try_twice(table_, [this] {
    return STILLWAKE_CALL(table_, "releasing a device's primary context", cuDevicePrimaryCtxRelease, handle_);
  });
}

Result<std::pair<Bytes, Bytes>> Device::memory_info() {
  STILLWAKE_ENTER(*this);
  std::size_t free = 0;
  std::size_t total = 0;
  STILLWAKE_TRY(STILLWAKE_CALL(table_, "reading a device's free memory", cuMemGetInfo, &free, &total));
  return std::pair(Bytes(free), Bytes(total));
}

Result<bool> Device::owns(Stream stream, const char* asking) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    return true;
  }
  STILLWAKE_ENTER(*this);
  CUcontext context = nullptr;
  const CUresult result = table_.cuStreamGetCtx(stream, &context);
  if (result == CUDA_ERROR_INVALID_HANDLE) {
    Error error = driver_error(table_, CallId::cuStreamGetCtx, result,
                               std::string(asking) + ": " + hexadecimal(stream) + " is no stream; give one that lives");
    error.code = ErrorCode::kInvalidArgument;
    return failure(std::move(error));
  }
  if (result != CUDA_SUCCESS) {
    return failure(driver_error(table_, CallId::cuStreamGetCtx, result,
                                std::string(asking) + ": finding the device of stream " + hexadecimal(stream)));
  }
  return context == context_;
}

ContextScope::ContextScope(Device& device) : device_(device), entered_(push(device)) {}

ContextScope::~ContextScope() {
  if (!entered_ || driver_is_out_of_reach()) {
    return;
  }
  // A pop that did not happen would leave the caller inside our context: it is tried twice before it is given up.
  DriverTable& table = device_.table();
  CUcontext popped = nullptr;
  if (table.cuCtxPopCurrent(&popped) == CUDA_SUCCESS) {
    return;
  }
  const Result<void> again = STILLWAKE_CALL(table, "leaving the device's context", cuCtxPopCurrent, &popped);
  if (!again) {
    table.log(LogLevel::kError, again.error().describe().c_str());
  }
}

RelaxedCaptureScope::RelaxedCaptureScope(DriverTable& table)
    : table_(table), exchanged_(table.cuThreadExchangeStreamCaptureMode(&before_) == CUDA_SUCCESS) {}

RelaxedCaptureScope::~RelaxedCaptureScope() {
  if (!exchanged_ || driver_is_out_of_reach()) {
    return;
  }
  // As with the context: the caller's mode must not be lost to one failure.
  if (CUstreamCaptureMode mode = before_; table_.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS) {
    return;
  }
  CUstreamCaptureMode mode = before_;
  const Result<void> again =
      STILLWAKE_CALL(table_, "restoring the thread's capture mode", cuThreadExchangeStreamCaptureMode, &mode);
  if (!again) {
    table_.log(LogLevel::kError, again.error().describe().c_str());
  }
}

} // namespace stillwake
