// SPDX-License-Identifier: Apache-2.0
// The Registry is what all shards of one driver share: the host arena, a transfer engine a device, and the list of
// shards. It lives in the driver's attachment: there is no global.
#pragma once

#include "allocator/transfer/transfer.h"

#include <map>
#include <memory>
#include <vector>

namespace stillwake {

class ShardCore;

class Registry final : public DriverAttachment {
public:
  static Registry& of(Driver& driver);
  ~Registry() override;

  HostArena& arena() { return arena_; }
  /// The device's engine, opened at the first call.
  [[nodiscard]] Result<TransferEngine*> engine(Driver& driver, Device& device);

  void add(ShardCore& shard);
  void remove(ShardCore& shard);
  std::vector<ShardCore*> shards() const;

  /// Unpins what awake shards outside of `set` keep for their next sleep. Answers whether it gave anything up. Shards
  /// in a transition are passed over; the one that unpins is in one meanwhile, and the registry is free for others.
  bool give_up_retained(const std::vector<ShardCore*>& set);

private:
  /// The next shard that is not among `passed` and could be held; those that were looked at are passed from then on.
  ShardCore* hold_one_retained(std::vector<ShardCore*>& passed);

  HostArena arena_;
  mutable RankedMutex mutex_{LockRank::kRegistry};
  std::map<int, std::unique_ptr<TransferEngine>> engines_; // guarded by mutex_
  std::vector<ShardCore*> shards_;                         // guarded by mutex_
};

} // namespace stillwake
