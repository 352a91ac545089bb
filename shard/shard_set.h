// SPDX-License-Identifier: Apache-2.0
// A HeldSet is the shards of one transition, each held so that no other transition of it can start. What is not kept
// when it goes is let go.
#pragma once

#include "shard/shard_core.h"

#include <vector>

namespace stillwake {

/// The cores of a set. kInvalidArgument: a null, one twice, or shards of different drivers.
[[nodiscard]] Result<std::vector<ShardCore*>> cores_of(const std::vector<Shard*>& set);

class HeldSet {
public:
  HeldSet() = default;
  ~HeldSet() { release_all(); }
  HeldSet(const HeldSet&) = delete;
  HeldSet& operator=(const HeldSet&) = delete;

  [[nodiscard]] Result<void> hold(ShardCore& core) {
    STILLWAKE_TRY(core.begin_transition());
    held_.push_back(&core);
    return {};
  }
  /// The holds go on elsewhere.
  void hand_over() { held_.clear(); }
  void release_all() {
    for (ShardCore* core : held_) {
      core->end_transition();
    }
    held_.clear();
  }

private:
  std::vector<ShardCore*> held_;
};

} // namespace stillwake
