// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/pool_scopes.h"

#include "torch_plugin/library/torch_error.h"

#include <algorithm>
#include <type_traits>

namespace stillwake::pytorch {
namespace {

/// Without a destructor: PyTorch may allocate in those of other thread-local objects.
struct Stack {
  TensorShard* inside[PoolScopes::kMost];
  std::size_t depth;
};
static_assert(std::is_trivially_destructible_v<Stack>);
thread_local Stack stack{};

} // namespace

void PoolScopes::enter(TensorShard& shard) {
  if (has(shard)) {
    throw TorchError(ErrorCode::kInvalidArgument,
                     "this thread is inside the pool of shard '" + shard.name() + "' already");
  }
  if (stack.depth == kMost) {
    throw TorchError(ErrorCode::kInvalidArgument,
                     "this thread is inside " + std::to_string(kMost) + " pools, the most there can be");
  }
  stack.inside[stack.depth++] = &shard;
}

void PoolScopes::leave(const TensorShard& shard) {
  TensorShard** const end = stack.inside + stack.depth;
  TensorShard** const scope = std::find(stack.inside, end, &shard);
  if (scope == end) {
    throw TorchError(ErrorCode::kInvalidArgument,
                     "leaving the pool of shard '" + shard.name() + "', which this thread is not in");
  }
  std::copy(scope + 1, end, scope);
  --stack.depth;
}

bool PoolScopes::has(const TensorShard& shard) noexcept {
  return std::find(stack.inside, stack.inside + stack.depth, &shard) != stack.inside + stack.depth;
}

TensorShard* PoolScopes::innermost() noexcept { return stack.depth == 0 ? nullptr : stack.inside[stack.depth - 1]; }

TensorShard* PoolScopes::innermost_on(c10::Device device) noexcept {
  for (std::size_t at = stack.depth; at > 0; --at) {
    if (stack.inside[at - 1]->device() == device) {
      return stack.inside[at - 1];
    }
  }
  return nullptr;
}

std::set<c10::DeviceIndex> PoolScopes::gpus() {
  std::set<c10::DeviceIndex> gpus;
  for (std::size_t at = 0; at < stack.depth; ++at) {
    if (stack.inside[at]->device().is_cuda()) {
      gpus.insert(stack.inside[at]->device().index());
    }
  }
  return gpus;
}

} // namespace stillwake::pytorch
