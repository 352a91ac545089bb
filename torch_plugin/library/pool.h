// SPDX-License-Identifier: Apache-2.0
// While a Pool lives, new tensors that its thread makes on the shard's device live in the shard, and raise when they
// are used while it sleeps: each operator is looked at, too, so wrap construction, not training steps.
#pragma once

#include "tensor_shard.h"

namespace stillwake::pytorch {

class Pool {
public:
  /// Throws kAsleep for a shard that is not awake, kInvalidArgument when the thread is inside a pool of the shard
  /// already or for a CUDA shard in a process without PyTorch's CUDA side.
  explicit Pool(TensorShard& shard);
  /// On the thread that made it, the innermost first.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// The same in two halves, for languages without scopes.
  static void enter(TensorShard& shard);
  static void leave(TensorShard& shard);

private:
  TensorShard& shard_;
};

} // namespace stillwake::pytorch
