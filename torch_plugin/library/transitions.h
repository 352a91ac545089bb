// SPDX-License-Identifier: Apache-2.0
// Sleep, wake and swap of TensorShards: the core's transitions with the guard and the host views around them.
#pragma once

#include "tensor_shard.h"

#include <vector>

namespace stillwake::pytorch {

using TensorShards = std::vector<TensorShard*>;

/// As stillwake::sleep; throws TorchError. The adopted storages raise on access from the call on, so that a use in
/// another thread is an error and not a lost write; they stay usable where the sleep failed. kBusy also while a thread
/// is inside the pool of a CUDA shard of the set.
Report sleep(const TensorShards& set, const SleepOptions& options = {});
/// As stillwake::wake; throws TorchError. Host views raise from the call on; the storages are usable when it returns.
/// Where it fails while it waits for the verdict, content that is still arriving stays guarded until the next call.
Report wake(const TensorShards& set, const WakeOptions& options = {});
/// Returns when the copies are on their way. CUDA shards only: CPU code waits for no stream (kInvalidArgument).
Ticket wake(const TensorShards& set, const std::vector<Stream>& streams, const WakeOptions& options = {});
/// As stillwake::swap; throws TorchError.
Report swap(const TensorShards& outgoing, const TensorShards& incoming, const SleepOptions& sleep_options = {},
            const WakeOptions& wake_options = {});

} // namespace stillwake::pytorch
