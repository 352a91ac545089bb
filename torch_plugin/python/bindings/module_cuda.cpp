// SPDX-License-Identifier: Apache-2.0
// The extension module stillwake._cuda: importing it gives shards on a GPU their pools. Apart from _cpu, because it
// needs PyTorch's CUDA libraries.
#include "torch_plugin/cuda/caching_allocator_side.h"
#include "torch_plugin/cuda/segment_allocator.h"
#include "torch_plugin/library/pool_scopes.h"
#include "torch_plugin/library/session.h"
#include "torch_plugin/library/torch_error.h"
#include "torch_plugin/python/bindings/python_errors.h"
#include "torch_plugin/python/bindings/without_gil.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace stillwake::pytorch {
namespace {

/// A shard by the number that _cpu tells (Shard.key): the two modules share no types of pybind11's.
TensorShard& shard_of(std::uintptr_t key) {
  for (TensorShard* shard : Session::get().shards()) {
    if (reinterpret_cast<std::uintptr_t>(shard) == key) {
      return *shard;
    }
  }
  throw TorchError(ErrorCode::kInvalidArgument, "the shard was closed");
}

} // namespace
} // namespace stillwake::pytorch

PYBIND11_MODULE(_cuda, module) {
  namespace sw = stillwake::pytorch;
  module.doc() = "The CUDA side of stillwake; the package is the interface.";
  sw::bind_errors(module);
  sw::CachingAllocatorSide::get(); // registers itself
  // torch._C._MemPool, which PyTorch registered: torch.cuda.use_mem_pool and graphs take its id.
  module.def(
      "pool", [](std::uintptr_t key) { return sw::CachingAllocatorSide::get().pool(sw::shard_of(key)); }, sw::NoGil());
  module.def(
      "graph_pool", [](std::uintptr_t key) { return sw::CachingAllocatorSide::get().graph_pool(sw::shard_of(key)); },
      sw::NoGil());
  module.def("is_inside_pool", [] { return !sw::PoolScopes::gpus().empty(); });
  // Whether PyTorch's cache gave something up on the GPUs in whose pools the thread is, for an operator that found no
  // room.
  module.def(
      "empty_cache",
      [] {
        bool gave_up = false;
        for (const c10::DeviceIndex gpu : sw::PoolScopes::gpus()) {
          gave_up = sw::CachingAllocatorSide::get().empty_cache(stillwake::DeviceIndex(gpu)) || gave_up;
        }
        return gave_up;
      },
      sw::NoGil());
  // For tests of what PyTorch calls under its lock, on either driver.
  module.def(
      "allocate_segment",
      [](std::uintptr_t key, std::size_t bytes, int device) {
        return reinterpret_cast<std::uintptr_t>(sw::allocate_segment(sw::shard_of(key), bytes, device, nullptr));
      },
      sw::NoGil());
  module.def(
      "free_segment",
      [](std::uintptr_t segment) { sw::free_segment(reinterpret_cast<void*>(segment), nullptr); }, // NOLINT
      sw::NoGil());
}
