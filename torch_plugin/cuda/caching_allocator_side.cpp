// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/cuda/caching_allocator_side.h"

#include "torch_plugin/cuda/cublas_workspaces.h"
#include "torch_plugin/library/pool_scopes.h"
#include "torch_plugin/library/session.h"

#include <c10/cuda/CUDACachingAllocator.h>

namespace stillwake::pytorch {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

std::int64_t reserved_bytes(DeviceIndex device) {
  constexpr auto kAggregate = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return caching::getDeviceStats(static_cast<c10::DeviceIndex>(device.value())).reserved_bytes[kAggregate].current;
}

/// A LibTorch program only loads this library. It costs nothing where no CUDA is used.
[[maybe_unused]] const CachingAllocatorSide& at_load = CachingAllocatorSide::get();

} // namespace

CachingAllocatorSide& CachingAllocatorSide::get() {
  static CachingAllocatorSide* side = [] {
    auto* made = new CachingAllocatorSide;
    register_cuda_side(*made);
    return made;
  }();
  return *side;
}

ShardPool& CachingAllocatorSide::pool_of(TensorShard& shard) {
  auto& pool = pools_[&shard];
  if (pool == nullptr) {
    pool = std::make_unique<ShardPool>(shard);
  }
  return *pool;
}

std::shared_ptr<at::cuda::MemPool> CachingAllocatorSide::pool(TensorShard& shard) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pool_of(shard).given_out();
}

std::shared_ptr<at::cuda::MemPool> CachingAllocatorSide::graph_pool(TensorShard& shard) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pool_of(shard).keep_whole();
  return pool_of(shard).given_out();
}

void CachingAllocatorSide::enter_pool(TensorShard& shard) {
  PoolScopes::enter(shard);
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    pool_of(shard).enter();
  } catch (...) {
    PoolScopes::leave(shard);
    throw;
  }
}

void CachingAllocatorSide::leave_pool(TensorShard& shard) {
  PoolScopes::leave(shard);
  const std::lock_guard<std::mutex> lock(mutex_);
  pool_of(shard).leave();
}

bool CachingAllocatorSide::is_inside_pool(const TensorShard& shard) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pools_.find(&shard);
  return found != pools_.end() && found->second->threads_inside() != 0;
}

void CachingAllocatorSide::give_back(TensorShard& shard) {
  forget_cublas_workspaces(shard);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = pools_.find(&shard); found != pools_.end()) {
    found->second->give_back(true);
  }
}

std::vector<BlockLiveRanges> CachingAllocatorSide::live_ranges(TensorShard& shard) {
  forget_cublas_workspaces(shard);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pools_.find(&shard);
  if (found == pools_.end()) {
    return {};
  }
  found->second->give_back(false);
  return found->second->live_ranges();
}

/// The pools of the device that this thread is in, alone; none where another thread is in one, too, since PyTorch would
/// keep its cache all the same.
std::vector<ShardPool*> CachingAllocatorSide::pools_to_step_out_of(DeviceIndex device) const {
  std::vector<ShardPool*> mine;
  for (const auto& [shard, pool] : pools_) {
    if (pool->threads_inside() == 0 || shard->device().index() != static_cast<c10::DeviceIndex>(device.value())) {
      continue;
    }
    if (pool->threads_inside() > 1 || !PoolScopes::has(*shard)) {
      return {};
    }
    mine.push_back(pool.get());
  }
  return mine;
}

bool CachingAllocatorSide::empty_cache(DeviceIndex device) {
  if (caching::name() != "native" || !caching::get()->initialized()) {
    return false; // there is no cache
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto before = reserved_bytes(device);
  // While anybody is inside a pool PyTorch keeps its cache, and the retry of its own has nothing to retry with.
  const std::vector<ShardPool*> left = pools_to_step_out_of(device);
  for (ShardPool* pool : left) {
    pool->step_out();
  }
  try {
    caching::emptyCache();
  } catch (const c10::Error& error) { // the next call of CUDA tells it again; here the device is full, and stays so
    Session::log(LogLevel::kWarning, error.what_without_backtrace());
  }
  for (ShardPool* pool : left) {
    pool->step_in();
  }
  return reserved_bytes(device) < before;
}

} // namespace stillwake::pytorch
