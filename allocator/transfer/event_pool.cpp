// SPDX-License-Identifier: Apache-2.0
#include "allocator/transfer/event_pool.h"

#include <algorithm>
#include <iterator>

namespace stillwake {

Result<std::vector<OwnedEvent>> EventPool::take(std::size_t count) {
  std::vector<OwnedEvent> taken;
  taken.reserve(count);
  {
    const RankedLock lock(mutex_);
    const std::size_t reused = std::min(count, free_.size());
    const auto first = free_.end() - static_cast<std::ptrdiff_t>(reused);
    std::move(first, free_.end(), std::back_inserter(taken));
    free_.erase(first, free_.end());
  }
  while (taken.size() < count) {
    Result<OwnedEvent> event = OwnedEvent::create(device_);
    if (!event) {
      give_back(std::move(taken));
      return failure(std::move(event).error());
    }
    taken.push_back(std::move(*event));
  }
  return taken;
}

void EventPool::give_back(std::vector<OwnedEvent> events) {
  const RankedLock lock(mutex_);
  std::move(events.begin(), events.end(), std::back_inserter(free_));
}

} // namespace stillwake
