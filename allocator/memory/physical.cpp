// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/physical.h"

#include <utility>

namespace stillwake {

Result<Physical> Physical::create(Device& device, Pages pages) {
  STILLWAKE_CHECK_LT(Pages(0), pages);
  STILLWAKE_ENTER(device);
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.handle()};
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = device.table().cuMemCreate(&handle, Bytes(pages).size(), &properties, 0);
  if (result != CUDA_SUCCESS) {
    std::string doing = "taking " + exact(Bytes(pages)) + " of device " + std::to_string(device.index().value());
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      if (auto memory = device.memory_info()) {
        doing += ", which has " + exact(memory->first) + " free of " + readable(memory->second);
      }
    }
    return failure(driver_error(device.table(), CallId::cuMemCreate, result, std::move(doing)));
  }
  return Physical(device, handle, pages);
}

Physical::Physical(Physical&& other) noexcept
    : device_(other.device_), handle_(std::exchange(other.handle_, 0)), pages_(std::exchange(other.pages_, Pages())) {}

Physical& Physical::operator=(Physical&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(pages_, other.pages_);
  return *this;
}

Physical::~Physical() {
  if (handle_ != 0) {
    try_twice(device_->table(), [this] { return release(); });
  }
}

Result<void> Physical::release() {
  if (handle_ == 0 || driver_is_out_of_reach()) {
    handle_ = 0;
    return {};
  }
  STILLWAKE_ENTER(*device_);
  STILLWAKE_TRY(STILLWAKE_CALL(device_->table(), "releasing a physical allocation", cuMemRelease, handle_));
  handle_ = 0;
  return {};
}

} // namespace stillwake
