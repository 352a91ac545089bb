// SPDX-License-Identifier: Apache-2.0
// The pair of functions that torch.cuda.memory.CUDAPluggableAllocator calls when Stillwake is PyTorch's allocator for
// every CUDA tensor of the process.
#pragma once

#include "tensor_shard.h"

#include <cstddef>

namespace stillwake::pytorch {

/// Which shard the calling thread's tensors go to in this mode; null: the default one of each device, "default".
void use(TensorShard* shard) noexcept;
TensorShard* used() noexcept;
/// The file that this library was loaded from: what CUDAPluggableAllocator is given.
std::string library_path();

} // namespace stillwake::pytorch

extern "C" {

/// `bytes` of device memory on `device` for `stream`; null for 0 bytes. Throws, since PyTorch takes null for memory:
/// c10::OutOfMemoryError for a full device, stillwake::pytorch::TorchError for the rest.
__attribute__((visibility("default"))) void* stillwake_torch_malloc(std::ptrdiff_t bytes, int device, void* stream);
/// Gives it back, whoever's it is; any thread, any state, never throws.
__attribute__((visibility("default"))) void stillwake_torch_free(void* block, std::ptrdiff_t bytes, int device,
                                                                 void* stream);
}
