// SPDX-License-Identifier: Apache-2.0
// The Guard makes the adopted storages of a sleeping shard raise when they are touched, instead of killing the device's
// context. It uses PyTorch's own flag on a storage, so every way to the data is covered: operators, foreach, fused
// kernels, numpy, backward, compiled code. Shapes, strides and addresses stay answerable.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace stillwake::pytorch {

/// Makes every access to the storage's data raise with this text; `clear` ends that.
void refuse_access(c10::StorageImpl& storage, const std::string& why);
void allow_access(c10::StorageImpl& storage);

class Guard {
public:
  using Storage = c10::intrusive_ptr<c10::StorageImpl>;

  /// Takes a storage in, once however often it is named. Keeps it weakly. Guards it at once while the guard is up.
  void add(const Storage& storage);
  bool has(const c10::StorageImpl* storage) const;
  /// The adopted storages that still live.
  std::vector<Storage> storages() const;

  /// From now on they raise. Up already: nothing.
  void raise(const std::string& why);
  void lower();

private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  void forget_the_dead();

  mutable std::mutex mutex_;
  // Guarded by mutex_. A weak reference keeps the object's address from being used again.
  std::unordered_map<const c10::StorageImpl*, Weak> storages_;
  std::size_t look_again_at_ = 64; // so many storages: forget the dead first
  bool up_ = false;
  std::string why_;
};

} // namespace stillwake::pytorch
