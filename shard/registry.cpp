// SPDX-License-Identifier: Apache-2.0
#include "shard/registry.h"

#include "shard/shard_core.h"

#include <algorithm>

namespace stillwake {

Registry& Registry::of(Driver& driver) {
  return static_cast<Registry&>(
      driver.attachment([](Driver&) -> std::unique_ptr<DriverAttachment> { return std::make_unique<Registry>(); }));
}

Registry::~Registry() = default;

Result<TransferEngine*> Registry::engine(Driver& driver, Device& device) {
  RankedLock lock(mutex_);
  auto& engine = engines_[device.index().value()];
  if (engine == nullptr) {
    auto opened = TransferEngine::open(device, driver.emulation());
    STILLWAKE_TRY(opened);
    engine = std::move(*opened);
  }
  return engine.get();
}

void Registry::add(ShardCore& shard) {
  RankedLock lock(mutex_);
  shards_.push_back(&shard);
}

void Registry::remove(ShardCore& shard) {
  RankedLock lock(mutex_);
  shards_.erase(std::remove(shards_.begin(), shards_.end(), &shard), shards_.end());
}

std::vector<ShardCore*> Registry::shards() const {
  RankedLock lock(mutex_);
  return shards_;
}

ShardCore* Registry::hold_one_retained(std::vector<ShardCore*>& passed) {
  RankedLock lock(mutex_);
  for (ShardCore* shard : shards_) {
    if (std::find(passed.begin(), passed.end(), shard) == passed.end()) {
      passed.push_back(shard);
      if (shard->hold_retained()) {
        return shard;
      }
    }
  }
  return nullptr;
}

bool Registry::give_up_retained(const std::vector<ShardCore*>& set) {
  bool gave_up = false;
  std::vector<ShardCore*> passed = set;
  // Unpinning takes long, and others want the list of shards: a shard that is held stays without the lock.
  while (ShardCore* shard = hold_one_retained(passed)) {
    gave_up = shard->give_up_retained() || gave_up;
  }
  return gave_up;
}

} // namespace stillwake
