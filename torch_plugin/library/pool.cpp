// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/pool.h"

#include "torch_plugin/library/cpu_scope.h"
#include "torch_plugin/library/cuda_side.h"
#include "torch_plugin/library/pool_watch.h"
#include "torch_plugin/library/torch_error.h"

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

/// Free parts of a sleeping shard's segments would be handed out without a call to us.
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

} // namespace

void Pool::enter(TensorShard& shard) {
  check_awake(shard);
  if (shard.device().is_cpu()) {
    CpuScope::enter(shard);
  } else {
    side_for(shard).enter_pool(shard);
  }
  PoolWatch::begin();
}

void Pool::leave(TensorShard& shard) {
  if (shard.device().is_cpu()) {
    CpuScope::leave(shard);
  } else {
    side_for(shard).leave_pool(shard);
  }
  PoolWatch::end();
}

Pool::Pool(TensorShard& shard) : shard_(shard) { enter(shard); }

Pool::~Pool() { leave(shard_); }

} // namespace stillwake::pytorch
