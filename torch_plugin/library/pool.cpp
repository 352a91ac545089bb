// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/pool.h"

#include "allocator/base/in_reach.h"
#include "torch_plugin/library/cpu_scope.h"
#include "torch_plugin/library/cuda_side.h"
#include "torch_plugin/library/pool_watch.h"
#include "torch_plugin/library/torch_error.h"
#include "torch_plugin/library/transitions.h"

#include <utility>

namespace stillwake::pytorch {
namespace {

CudaSide& side_for(const TensorShard& shard) {
  CudaSide* side = cuda_side();
  if (side == nullptr) {
    throw TorchError(ErrorCode::kInvalidArgument, "the pool of shard '" + shard.name() + "' on " +
                                                      shard.device().str() +
                                                      ": the library stillwake_torch_cuda is not loaded");
  }
  return *side;
}

/// On a GPU free parts of a sleeping shard's segments would be handed out without a call to us.
void check_awake(TensorShard& shard) {
  const ShardState state = shard.core().state();
  if (state != ShardState::kAwake && state != ShardState::kWaking) {
    const ErrorCode code = state == ShardState::kAsleep      ? ErrorCode::kAsleep
                           : state == ShardState::kLost      ? ErrorCode::kLost
                           : state == ShardState::kCorrupted ? ErrorCode::kCorrupted
                                                             : ErrorCode::kBusy;
    throw TorchError(code, "the pool of shard '" + shard.name() + "', which is " + to_string(state) +
                               "; new tensors need it awake");
  }
}

/// The thread counts as inside before it asks, and a sleep raises the guard before it looks who is inside: one of the
/// two sees the other.
void enter_on_device(TensorShard& shard) {
  CudaSide& side = side_for(shard);
  if (shard.core().state() == ShardState::kWaking) {
    wake({&shard}); // waits: what is arriving comes by whole pages, over free parts of segments, too
  }
  side.enter_pool(shard);
  try {
    check_awake(shard);
    if (shard.guard().is_up()) {
      throw TorchError(ErrorCode::kBusy,
                       "the pool of shard '" + shard.name() + "': a transition is under way; enter it afterwards");
    }
  } catch (...) {
    side.leave_pool(shard);
    throw;
  }
}

} // namespace

Pool::Pool(TensorShard& shard) : shard_(&shard) {
  value_or_throw(in_reach());
  if (shard.device().is_cpu()) { // each of its allocations asks the shard
    check_awake(shard);
    CpuScope::enter(shard);
  } else {
    enter_on_device(shard);
  }
  PoolWatch::begin();
}

Pool::~Pool() {
  if (thread_ == std::this_thread::get_id()) {
    leave();
  }
}

void Pool::leave() {
  if (thread_ != std::this_thread::get_id()) {
    throw TorchError(ErrorCode::kInvalidArgument, "leaving a pool in another thread than the one that entered it");
  }
  if (TensorShard* shard = std::exchange(shard_, nullptr)) {
    if (shard->device().is_cpu()) {
      CpuScope::leave(*shard);
    } else {
      side_for(*shard).leave_pool(*shard);
    }
    PoolWatch::end();
  }
}

} // namespace stillwake::pytorch
