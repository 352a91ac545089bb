// SPDX-License-Identifier: Apache-2.0
// A NoteQueue holds frees that wait to be carried out, and the streams that were ever seen. Any thread, from inside
// anything: its lock is held for a push or a swap only.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/heap/space_map.h"

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

namespace stillwake {

/// One block whose free is to be carried out. Its record says freed already.
struct Note {
  RecordIndex record = 0;
  Safety safety;                   ///< of the space it leaves, where no event says more
  std::optional<OwnedEvent> event; ///< recorded by the free itself on the stream it named
};

class NoteQueue {
public:
  void push(Note note) {
    RankedLock lock(mutex_);
    notes_.push_back(std::move(note));
    size_.store(notes_.size(), std::memory_order_release);
  }
  /// Everything so far, in order.
  std::vector<Note> take() {
    if (size() == 0) {
      return {};
    }
    RankedLock lock(mutex_);
    size_.store(0, std::memory_order_release);
    return std::exchange(notes_, {});
  }
  std::size_t size() const { return size_.load(std::memory_order_acquire); }

private:
  mutable RankedMutex mutex_{LockRank::kFreeQueue};
  std::vector<Note> notes_;
  std::atomic<std::size_t> size_{0};
};

} // namespace stillwake
