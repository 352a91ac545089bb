// SPDX-License-Identifier: Apache-2.0
#include "shard/handle_pool.h"

namespace stillwake {

Physical HandlePool::take(std::size_t index) {
  Physical handle = std::move(handles_[index]);
  pages_ -= handle.pages();
  handles_[index] = std::move(handles_.back());
  handles_.pop_back();
  return handle;
}

Physical HandlePool::take_at_most(Pages most) {
  std::size_t best = handles_.size();
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    if (handles_[i].pages() <= most && (best == handles_.size() || handles_[i].pages() > handles_[best].pages())) {
      best = i;
    }
  }
  return best == handles_.size() ? Physical() : take(best);
}

Physical HandlePool::take_exactly(Pages pages) {
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    if (handles_[i].pages() == pages) {
      return take(i);
    }
  }
  return Physical();
}

Physical HandlePool::take_smallest() {
  STILLWAKE_CHECK(!handles_.empty());
  std::size_t best = 0;
  for (std::size_t i = 1; i < handles_.size(); ++i) {
    if (handles_[i].pages() < handles_[best].pages()) {
      best = i;
    }
  }
  return take(best);
}

} // namespace stillwake
