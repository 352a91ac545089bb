// SPDX-License-Identifier: Apache-2.0
// The Guard makes the adopted storages of a sleeping shard raise when they are touched, instead of killing the device's
// context. It uses PyTorch's own flag on a storage, so every way to the data is covered: operators, foreach, fused
// kernels, numpy, backward, compiled code. Shapes, strides and addresses stay answerable.
#pragma once

#include "weak_storages.h"

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace stillwake::pytorch {

class TensorShard;

/// Makes every access to the storage's data raise with this text, until `allow_access`.
void refuse_access(c10::StorageImpl& storage, const std::string& why);
void allow_access(c10::StorageImpl& storage);

class Guard {
public:
  using Storage = StrongStorage;

  explicit Guard(const TensorShard& shard) : shard_(shard) {}

  /// Takes a storage in, once however often it is named. Keeps it weakly. Guards it at once while the guard is up.
  void add(const Storage& storage);
  bool has(const c10::StorageImpl* storage) const;
  /// The adopted storages that still live.
  std::vector<Storage> storages() const;

  /// In a child made by fork, which has none of the memory: the storages raise for ever. Its only thread calls this.
  void refuse_in_child(const std::string& why);

  /// A transition that may take their memory away begins: they raise from now on. Every hold is followed by a release.
  void hold(const std::string& why);
  void release();
  /// A transition has ended: where nobody holds the guard and `is_usable` says so, they raise no longer.
  void settle(const std::function<bool()>& is_usable);
  /// Whether a transition that may take their memory away is under way, or has.
  bool is_up() const;

private:
  void forget_the_dead();
  /// Whether a transition of the shard concerns it. Not once PyTorch has put other memory behind it: share_memory_()
  /// exchanges a storage's memory for some that every process sees.
  bool concerns(c10::StorageImpl& storage) const;

  const TensorShard& shard_;
  // Taken before mutex_ and held while flags change, so that one transition's flags are never mixed with another's.
  // Nobody holds the GIL who wants it: to take a strong reference may need the GIL.
  std::mutex flags_mutex_;
  int holds_ = 0; // guarded by flags_mutex_
  mutable std::mutex mutex_;
  // Guarded by mutex_. A weak reference keeps the object's address from being used again.
  WeakStorages<const c10::StorageImpl*> storages_;
  std::size_t look_again_at_ = 64; // so many storages: forget the dead first
  bool up_ = false;
  std::string why_;
};

} // namespace stillwake::pytorch
