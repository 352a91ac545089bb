// SPDX-License-Identifier: Apache-2.0
// The functions through which PyTorch's caching allocator takes the segments of a shard's pool, and gives them back.
// They run under the caching allocator's lock, perhaps during a capture: they take no lock of Python's and call nothing
// of PyTorch's.
#pragma once

#include "torch_plugin/library/tensor_shard.h"

#include <cstddef>

namespace stillwake::pytorch {

/// A segment of the shard. Null for a full device, so that PyTorch empties its cache and tries again; what else can
/// fail (asleep, busy, lost) is thrown as TorchError and never looks like a full device.
void* allocate_segment(TensorShard& shard, std::size_t bytes, int device, Stream stream);
/// Any thread, any state, never throws.
void free_segment(void* segment, Stream stream) noexcept;

} // namespace stillwake::pytorch
