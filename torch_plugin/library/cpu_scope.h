// SPDX-License-Identifier: Apache-2.0
// A CpuScope puts the CPU tensors that a thread makes into a shard, as torch.cuda.use_mem_pool does for CUDA tensors.
// It is how the PyTorch side works on the emulated driver, whose device memory is ordinary memory.
#pragma once

#include "torch_plugin/library/tensor_shard.h"

#include <c10/core/Allocator.h>

namespace stillwake::pytorch {

class CpuScope {
public:
  /// From now on the thread's new CPU tensors live in the shard. Scopes nest, the innermost counts. Throws
  /// kInvalidArgument when the thread is inside a scope of the shard already, kBusy when somebody has put another
  /// allocator before ours.
  static void enter(TensorShard& shard);
  /// Ends the shard's scope, those inside it go on; kInvalidArgument when the thread is not inside.
  static void leave(TensorShard& shard);
  /// The innermost scope of the calling thread, or null.
  static TensorShard* current() noexcept;

  /// PyTorch's CPU allocator, without ours before it.
  static c10::Allocator* usual_allocator();
};

} // namespace stillwake::pytorch
