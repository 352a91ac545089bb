// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/global_allocator.h"

#include "torch_plugin/library/session.h"
#include "torch_plugin/library/torch_error.h"

#include <dlfcn.h>

namespace stillwake::pytorch {
namespace {

thread_local TensorShard* used_by_this_thread = nullptr;

/// The shard of the thread where it fits the device, else the default one.
TensorShard& shard_for(int device) {
  const bool emulated = Session::get().driver().kind() == DriverKind::kEmulated;
  const c10::Device wanted =
      emulated ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  if (TensorShard* shard = used_by_this_thread; shard != nullptr && shard->device() == wanted) {
    return *shard;
  }
  ShardSpec spec;
  spec.name = "default";
  spec.device = wanted;
  return Session::get().shard(spec);
}

} // namespace

void use(TensorShard* shard) noexcept { used_by_this_thread = shard; }
TensorShard* used() noexcept { return used_by_this_thread; }

std::string library_path() {
  Dl_info info{};
  const auto* inside = reinterpret_cast<const void*>(&stillwake_torch_malloc);
  return dladdr(inside, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

} // namespace stillwake::pytorch

using namespace stillwake;          // NOLINT: the functions below are C's
using namespace stillwake::pytorch; // NOLINT

void* stillwake_torch_malloc(std::ptrdiff_t bytes, int device, void* stream) {
  if (bytes == 0) {
    return nullptr;
  }
  if (bytes < 0) {
    throw TorchError(ErrorCode::kInvalidArgument,
                     "stillwake_torch_malloc: " + std::to_string(bytes) + " bytes; 1 or more are possible");
  }
  return shard_for(device).allocate(Bytes(static_cast<std::uint64_t>(bytes)), static_cast<Stream>(stream));
}

void stillwake_torch_free(void* block, std::ptrdiff_t, int, void* stream) {
  if (TensorShard* shard = Session::get().find(block)) {
    shard->free(block, static_cast<Stream>(stream));
  }
}
