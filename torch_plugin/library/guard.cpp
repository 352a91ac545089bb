// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/guard.h"

#include "allocator/base/in_reach.h"
#include "torch_plugin/library/tensor_shard.h"
#include "torch_plugin/library/torch_error.h"

#include <algorithm>
#include <utility>

namespace stillwake::pytorch {
namespace {

// PyTorch sets the flag in public and in 2.11 clears it nowhere. An explicit instantiation may name a private member,
// so these two give a way to it that the language grants. (Newer versions have clear_data_ptr_access_error_msg_, which
// frees the text.)
using Impl = c10::StorageImpl;
bool& throws_on_access(Impl& storage);
void look_at_flags_again(Impl& storage);

template <bool Impl::*Flag, void (Impl::*Refresh)()> struct Reach {
  friend bool& throws_on_access(Impl& storage) { return storage.*Flag; }
  friend void look_at_flags_again(Impl& storage) { (storage.*Refresh)(); }
};
template struct Reach<&Impl::throw_on_immutable_data_ptr_, &Impl::refresh_has_data_ptr_check>;

} // namespace

void refuse_access(c10::StorageImpl& storage, const std::string& why) {
  std::optional<std::string>& text = storage.get_extra_meta().custom_data_ptr_error_msg_;
  if (text != why) {
    text = why;
  }
  throws_on_access(storage) = true;
  look_at_flags_again(storage);
}

void allow_access(c10::StorageImpl& storage) {
  throws_on_access(storage) = false; // the text stays: a thread that has just met the flag is about to read it
  look_at_flags_again(storage);
}

void Guard::add(const Storage& storage) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (storages_.size() >= look_again_at_) {
    forget_the_dead();
    look_again_at_ = std::max<std::size_t>(64, storages_.size() * 2);
  }
  storages_.try_emplace(storage.get(), WeakStorage(storage));
  if (up_ && concerns(*storage)) {
    refuse_access(*storage, why_);
  }
}

bool Guard::has(const c10::StorageImpl* storage) const {
  value_or_throw(in_reach());
  const std::lock_guard<std::mutex> lock(mutex_);
  return storages_.count(storage) != 0;
}

std::vector<Guard::Storage> Guard::storages() const { return living(storages_, mutex_); }

/// Called with the mutex held.
void Guard::forget_the_dead() {
  for (auto at = storages_.begin(); at != storages_.end();) {
    at = at->second.expired() ? storages_.erase(at) : std::next(at);
  }
}

bool Guard::concerns(c10::StorageImpl& storage) const {
  const void* data = storage._mutable_data_ptr_no_checks().get();
  return data == nullptr || shard_.contains(data); // without memory: a later resize_ would ask the shard for it
}

void Guard::refuse_in_child(const std::string& why) {
  for (const Storage& storage : living_in_child(storages_, mutex_)) {
    if (concerns(*storage)) {
      refuse_access(*storage, why);
    }
  }
}

void Guard::hold(const std::string& why) {
  std::vector<Storage> alive; // dropped without the mutex: what dies here may run Python code
  const std::lock_guard<std::mutex> flags(flags_mutex_);
  ++holds_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(up_, true)) {
      return;
    }
    why_ = why;
  }
  alive = storages();
  for (const Storage& storage : alive) {
    if (concerns(*storage)) {
      refuse_access(*storage, why);
    }
  }
}

void Guard::release() {
  const std::lock_guard<std::mutex> flags(flags_mutex_);
  --holds_;
}

bool Guard::is_up() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return up_;
}

void Guard::settle(const std::function<bool()>& is_usable) {
  std::vector<Storage> alive;
  const std::lock_guard<std::mutex> flags(flags_mutex_);
  if (holds_ != 0 || !is_usable()) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!std::exchange(up_, false)) {
      return;
    }
  }
  alive = storages();
  for (const Storage& storage : alive) {
    if (concerns(*storage)) {
      allow_access(*storage);
    }
  }
}

} // namespace stillwake::pytorch
