// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/cuda/cublas_workspaces.h"

#include <torch/headeronly/version.h>

#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <utility>
#include <vector>

// PyTorch's header for these includes those of all CUDA math libraries, which its own packages do not bring along.
// Their declarations are short, and this build is for one minor version of PyTorch alone: they stand here for the
// versions that were looked at.
#if __has_include(<cusparse.h>) && __has_include(<cusolverDn.h>) && __has_include(<cublas_v2.h>)
#include <ATen/cuda/CUDAContextLight.h>
#define STILLWAKE_KNOWS_WORKSPACES 1
#elif TORCH_VERSION_MAJOR == 2 && (TORCH_VERSION_MINOR == 11 || TORCH_VERSION_MINOR == 15)
#include <c10/core/Allocator.h>
namespace at::cuda {
struct WorkspaceMapWithMutex {
#if TORCH_VERSION_MINOR == 11
  std::map<std::tuple<void*, void*>, at::DataPtr> map;
#else
  std::map<std::tuple<void*, void*>, std::pair<at::DataPtr, size_t>> map;
#endif
  std::shared_mutex mutex;
};
WorkspaceMapWithMutex& cublas_handle_stream_to_workspace();
WorkspaceMapWithMutex& cublaslt_handle_stream_to_workspace();
} // namespace at::cuda
#define STILLWAKE_KNOWS_WORKSPACES 1
#else
#warning "without the headers of cuBLAS, cuSPARSE and cuSOLVER, products inside a pool leave a workspace in the shard"
#define STILLWAKE_KNOWS_WORKSPACES 0
#endif

namespace stillwake::pytorch {

#if STILLWAKE_KNOWS_WORKSPACES

namespace {

// A workspace as the versions of PyTorch keep it: alone, or beside its size.
at::DataPtr& memory_of(at::DataPtr& workspace) { return workspace; }
template <class Size> at::DataPtr& memory_of(std::pair<at::DataPtr, Size>& workspace) { return workspace.first; }

} // namespace

void forget_cublas_workspaces(const TensorShard& shard) {
  std::vector<c10::DataPtr> forgotten; // given back outside of PyTorch's lock
  for (auto* kept :
       {&at::cuda::cublas_handle_stream_to_workspace(), &at::cuda::cublaslt_handle_stream_to_workspace()}) {
    const std::unique_lock<std::shared_mutex> lock(kept->mutex);
    for (auto at = kept->map.begin(); at != kept->map.end();) {
      if (shard.contains(memory_of(at->second).get())) {
        forgotten.push_back(std::move(memory_of(at->second)));
        at = kept->map.erase(at);
      } else {
        ++at;
      }
    }
  }
}

#else

void forget_cublas_workspaces(const TensorShard&) {}

#endif

} // namespace stillwake::pytorch
