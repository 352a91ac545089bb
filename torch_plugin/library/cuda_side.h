// SPDX-License-Identifier: Apache-2.0
// The CudaSide is what only PyTorch's CUDA libraries can do for a shard on a GPU. This library builds without them; the
// library stillwake_torch_cuda registers its CudaSide when it is loaded.
#pragma once

#include "shard/stillwake.h"

#include <vector>

namespace stillwake::pytorch {

class TensorShard;

class CudaSide {
public:
  virtual ~CudaSide() = default;

  /// From now on the thread's new tensors on the shard's device live in it. One scope of a shard a thread.
  virtual void enter_pool(TensorShard& shard) = 0;
  virtual void leave_pool(TensorShard& shard) = 0;
  /// Whether any thread is. PyTorch would hand it free parts of a sleeping shard's segments without a call to us.
  virtual bool is_inside_pool(const TensorShard& shard) const = 0;
  /// Gives the segments that hold no tensor back to the shard, which is about to be closed.
  virtual void give_back(TensorShard& shard) = 0;
  /// Which parts of the pool's segments hold tensors. The segments are blocks of the shard. Takes PyTorch's lock, so
  /// none of ours is held.
  virtual std::vector<BlockLiveRanges> live_ranges(TensorShard& shard) = 0;
  /// Empties PyTorch's cache on the device; whether that released anything. The calling thread is outside of every pool
  /// meanwhile, and inside again afterwards. Never to be called from what PyTorch calls under its lock.
  virtual bool empty_cache(DeviceIndex device) = 0;
};

void register_cuda_side(CudaSide& side) noexcept;
/// Null until it is registered.
CudaSide* cuda_side() noexcept;

} // namespace stillwake::pytorch
