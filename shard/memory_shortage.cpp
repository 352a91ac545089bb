// SPDX-License-Identifier: Apache-2.0
#include "shard/memory_shortage.h"

#include "shard/shard_core.h"

namespace stillwake {

bool MemoryShortage::ask_owners(const std::vector<DeviceNeed>& needs) {
  bool gave_up = false;
  for (ShardCore* core : registry_.shards()) {
    // An owner may give memory up by destroying shards: those are not there to be asked any more.
    const std::vector<ShardCore*> living = registry_.shards();
    if (std::find(living.begin(), living.end(), core) == living.end()) {
      continue;
    }
    if (ShardOwner* owner = core->options().owner) {
      const auto need = std::find_if(needs.begin(), needs.end(),
                                     [&](const DeviceNeed& one) { return one.device == &core->device(); });
      const Bytes needed(need == needs.end() ? Pages(0) : need->pages);
      gave_up = owner->memory_is_short(core->options().device, needed) || gave_up;
    }
  }
  return gave_up;
}

Result<void> MemoryShortage::wait(Error lack, const std::vector<DeviceNeed>& needs) {
  if (lack.code != ErrorCode::kOutOfDeviceMemory) {
    return failure(std::move(lack));
  }
  if (!begin_) {
    begin_ = clock_.now();
    if (ask_owners(needs)) { // every owner may hold a cache, those of awake shards above all
      return {};
    }
  }
  if (!timeout_) {
    return failure(std::move(lack));
  }
  const Duration waited = clock_.now() - *begin_;
  if (waited >= *timeout_) {
    lack.code = ErrorCode::kTimedOut;
    lack.message = "waited " + std::to_string(seconds(waited)) + " s for device memory: " + lack.message;
    return failure(std::move(lack));
  }
  // Nothing is held while it waits: two that wait for each other's memory must not both hold half of it.
  clock_.sleep_for(std::min<Duration>(std::chrono::milliseconds(5), *timeout_ - waited));
  return {};
}

} // namespace stillwake
