// SPDX-License-Identifier: Apache-2.0
// Moving the bytes of storages with PyTorch's own means, so that this library needs no CUDA of PyTorch's to build.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>

namespace stillwake::pytorch {

/// Copies on the device and waits for it.
void copy_bytes(void* to, const void* from, std::size_t bytes, c10::Device device);
/// Waits for all work queued on the device; nothing on the CPU.
void wait_for_device(c10::Device device);
/// The deleter that PyTorch's own allocator for these devices puts behind its storages.
c10::DeleterFnPtr usual_deleter(c10::DeviceType type);

} // namespace stillwake::pytorch
