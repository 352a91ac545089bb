// SPDX-License-Identifier: Apache-2.0
// An Event is a note of what had to be done when it was last recorded: on one stream, on a whole context, or in a
// capture. All of it is guarded by the mutex of Emulation::State.
#pragma once

#include "allocator/driver/emulation/context.h"

#include <algorithm>

namespace stillwake::emulation {

struct Event {
  Context& context;
  const unsigned flags;

  bool recorded = false;
  TimePoint recorded_at;
  std::vector<CompletionPointer> work; ///< what it waits for; empty means done

  bool captured = false;          ///< the last record was into a capture
  std::weak_ptr<Capture> capture; ///< expired once that capture ended
  std::vector<int> frontier;

  bool done() const {
    return std::all_of(work.begin(), work.end(), [](const CompletionPointer& one) { return one->done(); });
  }
  /// When it was done: not before it was recorded.
  TimePoint at() const {
    TimePoint latest = recorded_at;
    for (const CompletionPointer& one : work) {
      latest = std::max(latest, one->at());
    }
    return latest;
  }
};

} // namespace stillwake::emulation
