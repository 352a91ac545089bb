// SPDX-License-Identifier: Apache-2.0
// An EventPool keeps the events of one device for reuse: making one is a driver call, and a wake needs one a chunk.
// An event may come back while streams still wait for it: a wait holds to the record that it found.
#pragma once

#include "allocator/driver/driver_layer.h"

#include <vector>

namespace stillwake {

class EventPool {
public:
  explicit EventPool(Device& device) : device_(device) {}

  /// So many events, or none. Any thread.
  [[nodiscard]] Result<std::vector<OwnedEvent>> take(std::size_t count);
  void give_back(std::vector<OwnedEvent> events);

private:
  Device& device_;
  RankedMutex mutex_{LockRank::kTransferPool};
  std::vector<OwnedEvent> free_; // guarded by mutex_
};

} // namespace stillwake
