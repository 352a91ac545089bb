// SPDX-License-Identifier: Apache-2.0
// The HostViews of a shard are the CPU storages that show the pinned bytes of its sleeping storages: one host storage a
// device storage, of its size, as long as the shard sleeps. Nothing is copied. While a wake is under way and once the
// shard is awake they raise; after a wake that failed they show what they showed before.
#pragma once

#include "weak_storages.h"

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace stillwake {
class Shard;
}

namespace stillwake::pytorch {

class HostViews {
public:
  using Storage = StrongStorage;

  /// The host storage of a device storage that lies in the sleeping shard. With `write` the pages count as written on
  /// the host: the next wake restores them and reports them unverified. Throws what Shard::host_address answers, kBusy
  /// while the shard is being woken or closed.
  Storage of(Shard& shard, c10::StorageImpl& storage, bool write);
  /// Whether anybody holds one.
  bool any() const { return !given().empty(); }
  /// As Guard::refuse_in_child: host memory is not inherited either.
  void refuse_in_child(const std::string& why);
  /// What may end the host copy begins: every view given out raises from now on. Every hold is followed by a settle.
  void hold(const std::string& why);
  /// It has ended. `is_kept` answers whether the host copy is still what it was; else the views are over for ever.
  void settle(const std::function<bool()>& is_kept);

private:
  WeakStorage known(const void* device) const;
  std::vector<Storage> given() const;

  // Taken before mutex_ and held while flags change; as in the Guard, by nobody who holds the GIL.
  std::mutex flags_mutex_;
  mutable std::mutex mutex_;
  WeakStorages<const void*> views_; // by the device address; guarded by mutex_
  int holds_ = 0;                   // guarded by mutex_
  std::uint64_t ended_ = 0;         // how often the views ended; guarded by mutex_
};

} // namespace stillwake::pytorch
