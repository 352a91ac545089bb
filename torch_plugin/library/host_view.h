// SPDX-License-Identifier: Apache-2.0
// host_view: a sleeping tensor as a CPU tensor on its pinned bytes, without a copy.
#pragma once

#include <ATen/core/Tensor.h>

namespace stillwake::pytorch {

/// A CPU tensor of the same dtype, shape, stride and storage offset, on the host copy of the whole storage; tensors
/// that share a storage share the view's. A tensor outside of every shard is answered as it is. Read-only by contract;
/// with `write` what is written is restored by the next wake, and reported unverified. It raises once the shard wakes.
/// Throws TorchError: kBusy while the shard is not asleep, kInvalidArgument for a shard whose policy is discard or
/// whose host copy is packed.
at::Tensor host_view(const at::Tensor& tensor, bool write = false);

} // namespace stillwake::pytorch
