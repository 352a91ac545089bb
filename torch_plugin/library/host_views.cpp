// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/host_views.h"

#include "shard/stillwake.h"
#include "torch_plugin/library/guard.h"
#include "torch_plugin/library/torch_error.h"

#include <c10/core/CPUAllocator.h>

#include <vector>

namespace stillwake::pytorch {
namespace {

/// CPU memory that others own.
HostViews::Storage borrowed(void* data, std::size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(data, c10::Device(c10::kCPU)), /*allocator=*/nullptr,
                                               /*resizable=*/false);
}

} // namespace

HostViews::Storage HostViews::of(Shard& shard, c10::StorageImpl& storage, bool write) {
  const void* device = storage._mutable_data_ptr_no_checks().get();
  const std::size_t bytes = storage.nbytes();
  if (device == nullptr || bytes == 0) {
    return borrowed(nullptr, 0);
  }
  std::byte* host = value_or_throw(shard.host_address(device));
  if (write) {
    value_or_throw(shard.mark_host_dirty(device, Bytes(bytes)));
  }
  // Taking a strong reference may need the GIL, whose holder may want our mutex: never while we hold it.
  if (Storage view = known(device).lock(); view && view->nbytes() == bytes) {
    return view;
  }
  Storage view = borrowed(host, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  views_.insert_or_assign(device, Weak(view));
  return view;
}

HostViews::Weak HostViews::known(const void* device) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = views_.find(device);
  return found == views_.end() ? Weak(Storage()) : found->second;
}

void HostViews::end(const std::string& why) {
  std::unordered_map<const void*, Weak> given;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    given.swap(views_);
  }
  for (const auto& [device, weak] : given) {
    if (const Storage view = weak.lock()) {
      refuse_access(*view, why);
    }
  }
}

} // namespace stillwake::pytorch
