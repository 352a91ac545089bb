// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/cuda/segment_allocator.h"

#include "torch_plugin/library/last_failure.h"
#include "torch_plugin/library/session.h"
#include "torch_plugin/library/torch_error.h"

namespace stillwake::pytorch {

void* allocate_segment(TensorShard& shard, std::size_t bytes, int device, Stream stream) {
  if (bytes == 0) {
    return nullptr;
  }
  // PyTorch passes the current device, which is the pool's unless a scope was entered on another one.
  if (!shard.device().is_cpu() && shard.device().index() != device) {
    const Error error{ErrorCode::kInvalidArgument, 0, "",
                      "a tensor on cuda:" + std::to_string(device) + " in the pool of shard '" + shard.name() +
                          "', which is on " + shard.device().str()};
    note_failure(error);
    throw TorchError(error);
  }
  Result<void*> segment = shard.try_allocate(Bytes(bytes), stream);
  if (segment) {
    return *segment;
  }
  if (segment.error().code == ErrorCode::kOutOfDeviceMemory) {
    return nullptr;
  }
  throw TorchError(std::move(segment).error());
}

void free_segment(void* segment, Stream stream) noexcept {
  if (TensorShard* shard = Session::get().find(segment)) {
    shard->free(segment, stream);
  }
}

} // namespace stillwake::pytorch
