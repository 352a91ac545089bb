// SPDX-License-Identifier: Apache-2.0
// While a Pool lives, new tensors that its thread makes on the shard's device live in the shard, and raise when they
// are used while it sleeps: each operator is looked at, too, so wrap construction, not training steps.
#pragma once

#include "tensor_shard.h"

#include <thread>

namespace stillwake::pytorch {

class Pool {
public:
  /// Throws kAsleep for a shard that is not awake, kInvalidArgument when the thread is inside a pool of the shard
  /// already or for a CUDA shard in a process without PyTorch's CUDA side.
  explicit Pool(TensorShard& shard);
  /// On the thread that made it, in any order with others. On another one it does nothing, and that thread stays
  /// inside.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Ends the scope before the object; called again it does nothing. On the thread that made it, else kInvalidArgument.
  void leave();

private:
  TensorShard* shard_; // null: left
  std::thread::id thread_ = std::this_thread::get_id();
};

} // namespace stillwake::pytorch
