// SPDX-License-Identifier: Apache-2.0
// The CachingAllocatorSide is the CudaSide over PyTorch's CUDA caching allocator: a MemPool a shard, whose segments are
// blocks of the shard.
#pragma once

#include "torch_plugin/library/cuda_side.h"

#include <ATen/cuda/MemPool.h>

#include <memory>
#include <mutex>
#include <unordered_map>

namespace stillwake::pytorch {

class CachingAllocatorSide final : public CudaSide {
public:
  /// The one of the process, registered at the first call. Never destroyed: pools outlive the interpreter.
  static CachingAllocatorSide& get();

  /// The shard's pool, made at the first call. It is never destroyed either, so that a tensor may outlive everything.
  std::shared_ptr<at::cuda::MemPool> pool(TensorShard& shard);
  /// The same as the pool of CUDA graphs: from now on its segments are kept whole, since a replay writes into parts
  /// that hold no tensor.
  std::shared_ptr<at::cuda::MemPool> graph_pool(TensorShard& shard);

  void enter_pool(TensorShard& shard) override;
  void leave_pool(TensorShard& shard) override;
  std::vector<BlockLiveRanges> live_ranges(TensorShard& shard) override;
  bool empty_cache(DeviceIndex device) override;

private:
  struct ShardPool {
    std::shared_ptr<at::cuda::MemPool> pool;
    bool holds_graphs = false;
  };

  CachingAllocatorSide() = default;
  /// The pool without making one; empty when there is none.
  ShardPool known(const TensorShard& shard) const;

  mutable std::mutex mutex_;                                // never held while PyTorch is called
  std::unordered_map<const TensorShard*, ShardPool> pools_; // guarded by mutex_
};

} // namespace stillwake::pytorch
