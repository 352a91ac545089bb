// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/cuda/shard_pool.h"

#include "torch_plugin/cuda/segment_allocator.h"
#include "torch_plugin/library/pool_scopes.h"
#include "torch_plugin/library/torch_error.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/env.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>

namespace stillwake::pytorch {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

/// Each of these makes PyTorch pass a pool by in silence, or raise with a text that helps nobody.
void check_that_pytorch_has_pools(const TensorShard& shard) {
  const auto refuse = [&](const std::string& why) {
    throw TorchError(ErrorCode::kInvalidArgument, "the pool of shard '" + shard.name() + "': " + why);
  };
  if (const std::string name = caching::name(); name == "pluggable") {
    refuse("the process has a CUDA allocator of its own (stillwake.install, change_current_allocator), beside which "
           "PyTorch has no pools; stillwake.use(shard) names the shard of new tensors");
  } else if (name != "native") {
    refuse("PyTorch's CUDA allocator '" + name + "' has no pools; use the backend 'native', or stillwake.adopt");
  }
  for (const char* variable : {"PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"}) {
    if (c10::utils::check_env(variable) == true) {
      refuse(std::string(variable) + " turns PyTorch's pools off; unset it, or use stillwake.adopt");
    }
  }
  if (!caching::isEnabled()) {
    refuse("PyTorch's caching allocator is turned off (torch.cuda.memory.caching_allocator_enable), and its pools "
           "with it; turn it on, or use stillwake.adopt");
  }
}

/// While anybody is inside a pool of the device or captures there, PyTorch refuses (by an assertion). Then the segments
/// come back when the cache is emptied next.
void empty(at::cuda::MemPool& pool) {
  try {
    caching::emptyCache(pool.id());
  } catch (const c10::Error&) { // NOLINT(bugprone-empty-catch): see above
  }
}

bool holds_a_tensor(const caching::BlockInfo& block) { return block.allocated || block.active; }

/// The parts of a segment that hold tensors, or may still be read by work in flight.
BlockLiveRanges ranges_of(const caching::SegmentInfo& segment) {
  BlockLiveRanges live;
  live.block = reinterpret_cast<const void*>(segment.address); // NOLINT: PyTorch tells addresses as numbers
  std::uint64_t offset = 0;
  for (const caching::BlockInfo& block : segment.blocks) {
    if (holds_a_tensor(block)) {
      live.ranges.push_back({Bytes(offset), Bytes(block.size)});
    }
    offset += block.size;
  }
  return live;
}

} // namespace

const std::shared_ptr<at::cuda::MemPool>& ShardPool::current() {
  check_that_pytorch_has_pools(shard_); // each time: it may be turned off at any time
  if (pool_ == nullptr) {
    at::globalContext().lazyInitDevice(c10::kCUDA); // a pool may be the first thing of CUDA in the program
    const c10::DeviceGuard on(shard_.device());     // a MemPool belongs to the current device
    auto allocator = torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
        [&shard = shard_](std::size_t bytes, int device, cudaStream_t stream) {
          return allocate_segment(shard, bytes, device, stream);
        },
        [](void* segment, std::size_t, int, cudaStream_t stream) { free_segment(segment, stream); });
    pool_ = std::make_shared<at::cuda::MemPool>(std::move(allocator));
  }
  return pool_;
}

const std::shared_ptr<at::cuda::MemPool>& ShardPool::given_out() {
  const auto& pool = current();
  given_out_ = true;
  return pool;
}

void ShardPool::enter() {
  if (inside_ == 0) {
    step_in();
  }
  ++inside_;
}

void ShardPool::leave() {
  if (inside_ == 1) {
    step_out();
  }
  --inside_;
}

void ShardPool::step_in() {
  const auto& pool = current();
  const int before = pool->use_count();
  try {
    // PyTorch asks the latest scope first, whoever's it is: each answers for the thread that allocates.
    caching::beginAllocateToPool(shard_.device().index(), pool->id(), [&shard = shard_](cudaStream_t) {
      return PoolScopes::innermost_on(shard.device()) == &shard;
    });
  } catch (const c10::Error&) {
    if (pool->use_count() > before) { // it counts before it looks
      caching::releasePool(shard_.device().index(), pool->id());
    }
    throw TorchError(ErrorCode::kBusy, "the pool of shard '" + shard_.name() +
                                           "': the program is inside it by torch.cuda.use_mem_pool or by a capture; "
                                           "leave that first");
  }
}

void ShardPool::step_out() {
  caching::endAllocateToPool(shard_.device().index(), pool_->id());
  // What beginAllocateToPool counted; the MemPool has a count of its own.
  caching::releasePool(shard_.device().index(), pool_->id());
}

int ShardPool::others() const { return pool_->use_count() - 1 - (inside_ == 0 ? 0 : 1); }

bool ShardPool::has_unused_segment() const {
  const auto segments = caching::snapshot(pool_->id(), false).segments;
  return std::any_of(segments.begin(), segments.end(), [](const caching::SegmentInfo& segment) {
    return std::none_of(segment.blocks.begin(), segment.blocks.end(), holds_a_tensor);
  });
}

void ShardPool::give_back(bool last) {
  for (const auto& pool : ended_) {
    empty(*pool);
  }
  if (pool_ == nullptr || inside_ != 0 || others() != 0 || !(last || (!given_out_ && !whole_)) ||
      !has_unused_segment()) {
    return;
  }
  caching::releasePool(shard_.device().index(), pool_->id()); // nobody counts it: its unsplit segments may go
  empty(*pool_);
  ended_.push_back(std::move(pool_));
  pool_ = nullptr;
}

void ShardPool::add_ranges(at::cuda::MempoolId_t id, std::vector<BlockLiveRanges>& live) const {
  for (const caching::SegmentInfo& segment : caching::snapshot(id, false).segments) {
    // A block that left the pool by another way, or lies elsewhere, is not ours to cut.
    if (shard_.contains(reinterpret_cast<const void*>(segment.address))) { // NOLINT
      live.push_back(ranges_of(segment));
    }
  }
}

std::vector<BlockLiveRanges> ShardPool::live_ranges() {
  std::vector<BlockLiveRanges> live;
  if (pool_ != nullptr && !whole_ && others() == 0) {
    add_ranges(pool_->id(), live);
  }
  for (auto& pool : ended_) {
    const std::size_t before = live.size();
    add_ranges(pool->id(), live);
    if (live.size() == before) { // everything in it is given back; the object itself is kept, see current()
      static auto* kept = new std::vector<std::shared_ptr<at::cuda::MemPool>>;
      kept->push_back(std::move(pool));
    }
  }
  ended_.erase(std::remove(ended_.begin(), ended_.end(), nullptr), ended_.end());
  return live;
}

} // namespace stillwake::pytorch
