// SPDX-License-Identifier: Apache-2.0
// The CachingAllocatorSide is the CudaSide over PyTorch's CUDA caching allocator: a ShardPool a shard.
#pragma once

#include "torch_plugin/cuda/shard_pool.h"
#include "torch_plugin/library/cuda_side.h"

#include <memory>
#include <mutex>
#include <unordered_map>

namespace stillwake::pytorch {

class CachingAllocatorSide final : public CudaSide {
public:
  /// The one of the process, registered at the first call. Never destroyed: pools outlive the interpreter.
  static CachingAllocatorSide& get();

  /// The shard's pool as PyTorch's own object, made at the first call. It is never destroyed either, so that a tensor
  /// may outlive everything.
  std::shared_ptr<at::cuda::MemPool> pool(TensorShard& shard);
  /// The same as the pool of CUDA graphs: from now on its segments are kept whole, since a replay writes into parts
  /// that hold no tensor.
  std::shared_ptr<at::cuda::MemPool> graph_pool(TensorShard& shard);

  void enter_pool(TensorShard& shard) override;
  void leave_pool(TensorShard& shard) override;
  bool is_inside_pool(const TensorShard& shard) const override;
  void give_back(TensorShard& shard) override;
  std::vector<BlockLiveRanges> live_ranges(TensorShard& shard) override;
  bool empty_cache(DeviceIndex device) override;

private:
  CachingAllocatorSide() = default;
  /// Called with the mutex held.
  ShardPool& pool_of(TensorShard& shard);
  std::vector<ShardPool*> pools_to_step_out_of(DeviceIndex device) const;

  // Held while PyTorch's lock is taken; so nothing that PyTorch calls under its lock may want it.
  mutable std::mutex mutex_;
  std::unordered_map<const TensorShard*, std::unique_ptr<ShardPool>> pools_; // guarded by mutex_
};

} // namespace stillwake::pytorch
