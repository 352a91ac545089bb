// SPDX-License-Identifier: Apache-2.0
// What the options of a shard and of a transition may be: asked before anything is held or changed.
#pragma once

#include "shard/shard_set.h"

namespace stillwake {

/// kInvalidArgument, naming the value: a name that cannot stand in messages, a choice that is none of its enum's, trust
/// without Policy::kFrozen.
[[nodiscard]] Result<void> check_options(const ShardOptions& options);
/// The addresses that a shard reserves: those asked for in whole pages, or as many as the device has memory.
/// kInvalidArgument for fewer than a page or more than a heap can count.
[[nodiscard]] Result<Bytes> reservation_size(const ShardOptions& options, const Device& device);
/// kInvalidArgument for a peer that cannot access the memory of `own`. Told at once, not by the first allocation:
/// access to pages is given when there are pages.
[[nodiscard]] Result<void> check_peer(const std::string& name, Device& own, Device& peer);

/// kInvalidArgument, naming the value: a timeout below zero.
[[nodiscard]] Result<void> check_options(const SleepOptions& options);
/// kInvalidArgument, naming the value: a timeout below zero, a chunk outside of its limits, a range that is wanted
/// first and does not lie in one shard of the set.
[[nodiscard]] Result<void> check_options(const WakeOptions& options, const std::vector<ShardCore*>& set);

} // namespace stillwake
