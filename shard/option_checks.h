// SPDX-License-Identifier: Apache-2.0
// What the options of a transition may be: asked before anything is held or changed.
#pragma once

#include "shard/shard_set.h"

namespace stillwake {

/// kInvalidArgument, naming the value: a timeout below zero.
[[nodiscard]] Result<void> check_options(const SleepOptions& options);
/// kInvalidArgument, naming the value: a timeout below zero, a chunk outside of its limits, a range that is wanted
/// first and does not lie in one shard of the set.
[[nodiscard]] Result<void> check_options(const WakeOptions& options, const std::vector<ShardCore*>& set);

} // namespace stillwake
