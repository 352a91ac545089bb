// SPDX-License-Identifier: Apache-2.0
// PoolScopes are the pools that the calling thread is in, the innermost last: the one stack behind the pools of CPU and
// of CUDA tensors. Every call is about the calling thread alone and takes no lock, so that allocators may ask it.
#pragma once

#include "torch_plugin/library/tensor_shard.h"

#include <cstddef>
#include <set>

namespace stillwake::pytorch {

class PoolScopes {
public:
  static constexpr std::size_t kMost = 32;

  /// Throws kInvalidArgument when the thread is inside the shard's pool already, or inside kMost of them.
  static void enter(TensorShard& shard);
  /// Ends the shard's scope, those inside it go on: coroutines of one thread leave in any order, and a scope that could
  /// not be left would last for ever. kInvalidArgument when the thread is not inside.
  static void leave(const TensorShard& shard);
  static bool has(const TensorShard& shard) noexcept;
  /// Null outside of every pool.
  static TensorShard* innermost() noexcept;
  /// The innermost of those on this device; null when there is none.
  static TensorShard* innermost_on(c10::Device device) noexcept;
  /// The GPUs on which the thread is inside a pool.
  static std::set<c10::DeviceIndex> gpus();
};

} // namespace stillwake::pytorch
