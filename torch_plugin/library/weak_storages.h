// SPDX-License-Identifier: Apache-2.0
// WeakStorages are storages that are known and not kept alive, by a key; the Guard and the HostViews of a shard share
// what is hard about them: a strong reference is never taken, nor dropped, under their mutex.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stillwake::pytorch {

using StrongStorage = c10::intrusive_ptr<c10::StorageImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
template <class Key> using WeakStorages = std::unordered_map<Key, WeakStorage>;

/// Those that still live; the mutex guards the map. Taking a strong reference may need the GIL, whose holder may want
/// the mutex: first the one, then the other.
template <class Key> std::vector<StrongStorage> living(const WeakStorages<Key>& known, std::mutex& mutex) {
  std::vector<WeakStorage> weak;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    weak.reserve(known.size());
    for (const auto& [key, each] : known) {
      weak.push_back(each);
    }
  }
  std::vector<StrongStorage> alive;
  alive.reserve(weak.size());
  for (const WeakStorage& each : weak) {
    if (StrongStorage storage = each.lock()) {
      alive.push_back(std::move(storage));
    }
  }
  return alive;
}

/// The same in a child made by fork, whose only thread calls this: none where another thread of the parent held the
/// mutex, since who held it does not live here, and what it guards cannot be looked at.
template <class Key> std::vector<StrongStorage> living_in_child(const WeakStorages<Key>& known, std::mutex& mutex) {
  if (!mutex.try_lock()) {
    return {};
  }
  mutex.unlock();
  return living(known, mutex);
}

} // namespace stillwake::pytorch
