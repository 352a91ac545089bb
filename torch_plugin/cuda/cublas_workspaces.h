// SPDX-License-Identifier: Apache-2.0
// cuBLAS gets a workspace for each stream when a product is first computed there, and PyTorch keeps it for ever. One
// that was made inside a shard's pool would be used by every later product of that stream, asleep or not.
#pragma once

#include "torch_plugin/library/tensor_shard.h"

namespace stillwake::pytorch {

/// Makes PyTorch forget the workspaces that lie in the shard; the next product of their streams makes new ones,
/// outside.
void forget_cublas_workspaces(const TensorShard& shard);

} // namespace stillwake::pytorch
