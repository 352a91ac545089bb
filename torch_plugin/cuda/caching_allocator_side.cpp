// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/cuda/caching_allocator_side.h"

#include "torch_plugin/cuda/segment_allocator.h"
#include "torch_plugin/library/tensor_shard.h"
#include "torch_plugin/library/torch_error.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <thread>

namespace stillwake::pytorch {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

/// The shards whose pools this thread is in. Trivially destructible: see CpuScope.
struct Scopes {
  static constexpr std::size_t kMost = 32;
  const TensorShard* inside[kMost];
  std::size_t depth;
};
thread_local Scopes scopes{};

std::shared_ptr<at::cuda::MemPool> make_pool(TensorShard& shard) {
  const c10::DeviceGuard on(shard.device()); // a MemPool belongs to the current device
  auto allocator = torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
      [&shard](std::size_t bytes, int device, cudaStream_t stream) {
        return allocate_segment(shard, bytes, device, stream);
      },
      [](void* segment, std::size_t, int, cudaStream_t stream) { free_segment(segment, stream); });
  return std::make_shared<at::cuda::MemPool>(std::move(allocator));
}

/// The parts of a segment that hold tensors, or may still be read by work in flight.
BlockLiveRanges ranges_of(const caching::SegmentInfo& segment) {
  BlockLiveRanges live;
  live.block = reinterpret_cast<const void*>(segment.address); // NOLINT: PyTorch tells addresses as numbers
  std::uint64_t offset = 0;
  for (const caching::BlockInfo& block : segment.blocks) {
    if (block.allocated || block.active) {
      live.ranges.push_back({Bytes(offset), Bytes(block.size)});
    }
    offset += block.size;
  }
  return live;
}

} // namespace

CachingAllocatorSide& CachingAllocatorSide::get() {
  static CachingAllocatorSide* side = [] {
    auto* made = new CachingAllocatorSide;
    register_cuda_side(*made);
    return made;
  }();
  return *side;
}

CachingAllocatorSide::ShardPool CachingAllocatorSide::known(const TensorShard& shard) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pools_.find(&shard);
  return found == pools_.end() ? ShardPool() : found->second;
}

std::shared_ptr<at::cuda::MemPool> CachingAllocatorSide::pool(TensorShard& shard) {
  if (ShardPool made = known(shard); made.pool != nullptr) {
    return made.pool;
  }
  auto fresh = make_pool(shard); // outside of our lock, since it takes PyTorch's
  const std::lock_guard<std::mutex> lock(mutex_);
  ShardPool& entry = pools_[&shard];
  if (entry.pool == nullptr) {
    entry.pool = std::move(fresh);
  }
  return entry.pool;
}

std::shared_ptr<at::cuda::MemPool> CachingAllocatorSide::graph_pool(TensorShard& shard) {
  auto made = pool(shard);
  const std::lock_guard<std::mutex> lock(mutex_);
  pools_[&shard].holds_graphs = true;
  return made;
}

void CachingAllocatorSide::enter_pool(TensorShard& shard) {
  if (std::find(scopes.inside, scopes.inside + scopes.depth, &shard) != scopes.inside + scopes.depth) {
    throw TorchError(ErrorCode::kInvalidArgument,
                     "this thread is inside the pool of shard '" + shard.name() + "' already");
  }
  if (scopes.depth == Scopes::kMost) {
    throw TorchError(ErrorCode::kInvalidArgument,
                     "this thread is inside " + std::to_string(Scopes::kMost) + " pools, the most there can be");
  }
  const auto pool_id = pool(shard)->id();
  caching::beginAllocateToPool(shard.device().index(), pool_id, [thread = std::this_thread::get_id()](cudaStream_t) {
    return std::this_thread::get_id() == thread;
  });
  scopes.inside[scopes.depth++] = &shard;
}

void CachingAllocatorSide::leave_pool(TensorShard& shard) {
  if (scopes.depth == 0 || scopes.inside[scopes.depth - 1] != &shard) {
    throw TorchError(ErrorCode::kInvalidArgument, "leaving the pool of shard '" + shard.name() +
                                                      "', which is not the innermost that this thread is in");
  }
  --scopes.depth;
  const auto pool_id = pool(shard)->id();
  caching::endAllocateToPool(shard.device().index(), pool_id);
  caching::releasePool(shard.device().index(), pool_id); // what beginAllocateToPool counted; the MemPool has its own
}

std::vector<BlockLiveRanges> CachingAllocatorSide::live_ranges(TensorShard& shard) {
  const ShardPool made = known(shard);
  std::vector<BlockLiveRanges> live;
  if (made.pool == nullptr || made.holds_graphs) {
    return live; // whole blocks
  }
  for (const caching::SegmentInfo& segment : caching::snapshot(made.pool->id(), false).segments) {
    // A block that left the pool by another way, or lies elsewhere, is not ours to cut.
    if (shard.contains(reinterpret_cast<const void*>(segment.address))) { // NOLINT
      live.push_back(ranges_of(segment));
    }
  }
  return live;
}

bool CachingAllocatorSide::empty_cache(DeviceIndex device) {
  const auto reserved = [device] {
    constexpr auto kAggregate = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return caching::getDeviceStats(static_cast<c10::DeviceIndex>(device.value())).reserved_bytes[kAggregate].current;
  };
  const auto before = reserved();
  caching::emptyCache();
  return reserved() < before;
}

} // namespace stillwake::pytorch
