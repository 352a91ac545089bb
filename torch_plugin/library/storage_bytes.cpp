// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/storage_bytes.h"

#include "torch_plugin/library/cpu_scope.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

namespace stillwake::pytorch {

void copy_bytes(void* to, const void* from, std::size_t bytes, c10::Device device) {
  if (device.is_cpu()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  const auto size = static_cast<std::int64_t>(bytes);
  const at::Tensor source = at::from_blob(const_cast<void*>(from), {size}, options);
  at::from_blob(to, {size}, options).copy_(source);
  wait_for_device(device);
}

void wait_for_device(c10::Device device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

c10::DeleterFnPtr usual_deleter(c10::DeviceType type) {
  c10::Allocator* allocator = type == c10::kCPU ? CpuScope::usual_allocator() : c10::GetAllocator(type);
  return allocator->raw_deleter();
}

} // namespace stillwake::pytorch
