// SPDX-License-Identifier: Apache-2.0
// A ShardPool is what PyTorch's CUDA caching allocator keeps for one shard: a MemPool whose segments are blocks of the
// shard, and those that were replaced and still hold tensors.
//
// PyTorch gives nothing of a live pool back. So a pool with unused segments is ended, which makes PyTorch give them
// back, and a fresh one takes its place. What lives in the old one stays, and is given back when it dies.
#pragma once

#include "torch_plugin/library/tensor_shard.h"

#include <ATen/cuda/MemPool.h>

#include <memory>
#include <vector>

namespace stillwake::pytorch {

/// Every call takes PyTorch's lock. One thread at a time.
class ShardPool {
public:
  explicit ShardPool(TensorShard& shard) : shard_(shard) {}

  /// PyTorch's pool, made at the first call and after the last one was ended. Never destroyed: its destructor ends the
  /// process when it meets a capture. Throws kInvalidArgument where PyTorch's allocator has no pools.
  const std::shared_ptr<at::cuda::MemPool>& current();
  /// The same for the program: it may hold the pool's id, which from now on stays what it is.
  const std::shared_ptr<at::cuda::MemPool>& given_out();
  /// From now on its segments are kept whole: a graph's replay writes into parts that hold no tensor.
  void keep_whole() { whole_ = true; }

  /// The calling thread is inside from now on; PyTorch asks about each allocation while any thread is. Throws kBusy
  /// when the program entered the pool in PyTorch's own way.
  void enter();
  void leave();
  std::size_t threads_inside() const { return inside_; }
  /// For the only thread inside: nobody is, and then it is again.
  void step_out();
  void step_in();

  /// Gives the segments without a tensor back to the shard. `last`: nobody will ask for the pool again.
  void give_back(bool last);
  /// Which parts of its segments hold tensors; segments that are not named are live as a whole.
  std::vector<BlockLiveRanges> live_ranges();

private:
  /// How many hold the pool beside us and the threads that are inside: graphs, and torch.cuda.use_mem_pool.
  int others() const;
  bool has_unused_segment() const;
  void add_ranges(at::cuda::MempoolId_t id, std::vector<BlockLiveRanges>& live) const;

  TensorShard& shard_;
  std::shared_ptr<at::cuda::MemPool> pool_; // null: none yet, or ended
  bool given_out_ = false;
  bool whole_ = false;
  std::size_t inside_ = 0;                                // threads
  std::vector<std::shared_ptr<at::cuda::MemPool>> ended_; // those that may still hold tensors
};

} // namespace stillwake::pytorch
