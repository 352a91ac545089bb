// SPDX-License-Identifier: Apache-2.0
// The HostViews of a shard are the CPU storages that show the pinned bytes of its sleeping storages: one host storage a
// device storage, of its size, as long as the shard sleeps. Nothing is copied. Once the shard wakes they raise.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <string>
#include <unordered_map>

namespace stillwake {
class Shard;
}

namespace stillwake::pytorch {

class HostViews {
public:
  using Storage = c10::intrusive_ptr<c10::StorageImpl>;

  /// The host storage of a device storage that lies in the sleeping shard. With `write` the pages count as written on
  /// the host: the next wake restores them and reports them unverified. Throws what Shard::host_address answers.
  Storage of(Shard& shard, c10::StorageImpl& storage, bool write);
  /// Every view given out raises from now on.
  void end(const std::string& why);

private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  Weak known(const void* device) const;

  mutable std::mutex mutex_;
  std::unordered_map<const void*, Weak> views_; // by the device address; guarded by mutex_
};

} // namespace stillwake::pytorch
