// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/host_views.h"

#include "shard/stillwake.h"
#include "torch_plugin/library/guard.h"
#include "torch_plugin/library/torch_error.h"

#include <c10/core/CPUAllocator.h>

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
  const std::uint64_t ended = [this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
  }();
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
  if (holds_ != 0 || ended_ != ended) {
    throw TorchError(ErrorCode::kBusy, "host view: shard '" + shard.name() + "' is being woken or closed");
  }
  views_.insert_or_assign(device, WeakStorage(view));
  return view;
}

WeakStorage HostViews::known(const void* device) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = views_.find(device);
  return found == views_.end() ? WeakStorage(Storage()) : found->second;
}

std::vector<HostViews::Storage> HostViews::given() const { return living(views_, mutex_); }

void HostViews::refuse_in_child(const std::string& why) {
  for (const Storage& view : living_in_child(views_, mutex_)) {
    refuse_access(*view, why);
  }
}

void HostViews::hold(const std::string& why) {
  std::vector<Storage> alive; // dropped without the mutex: what dies here may run Python code
  const std::lock_guard<std::mutex> flags(flags_mutex_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (holds_++ != 0) {
      return;
    }
  }
  alive = given();
  for (const Storage& view : alive) {
    refuse_access(*view, why);
  }
}

void HostViews::settle(const std::function<bool()>& is_kept) {
  std::vector<Storage> alive;
  const std::lock_guard<std::mutex> flags(flags_mutex_);
  const bool kept = is_kept();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --holds_;
    if (!kept) {
      views_.clear();
      ++ended_;
    }
    if (!kept || holds_ != 0) {
      return;
    }
  }
  alive = given();
  for (const Storage& view : alive) {
    allow_access(*view);
  }
}

} // namespace stillwake::pytorch
