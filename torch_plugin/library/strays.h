// SPDX-License-Identifier: Apache-2.0
// Tensors that live in no shard: a sleep leaves their memory on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace stillwake::pytorch {

/// The places in `tensors` of those whose storage has bytes and lives in no shard, each storage once. Tensors on the
/// meta device are passed over, and those on the CPU where the shards are a GPU's (`shards_are_on`). A tensor that has
/// no strided storage is one of them: nothing is known of its memory.
std::vector<std::size_t> find_strays(const std::vector<at::Tensor>& tensors, c10::DeviceType shards_are_on);

} // namespace stillwake::pytorch
