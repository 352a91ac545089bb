// SPDX-License-Identifier: Apache-2.0
// The TransferLanes are the streams of one engine: pages go out on one, come in on another, and each direction hashes
// on a third, so that neither the bus nor the hash waits for the other.
#pragma once

#include "allocator/driver/driver_layer.h"

#include <initializer_list>

namespace stillwake {

struct TransferLanes {
  OwnedStream out; ///< copies of a save
  OwnedStream save_hash;
  OwnedStream in;      ///< copies of all restores
  OwnedStream in_hash; ///< clears, digests and readiness of all restores, in order

  [[nodiscard]] static Result<TransferLanes> create(Device& device);
};

/// Waits until the streams are idle, whatever it takes: after an error nothing may still write into host memory. Tries
/// again where a call fails. kLost when the device cannot be waited for at all.
[[nodiscard]] Result<void> drain(Device& device, std::initializer_list<Stream> streams);

/// The error to return after `failed`, with the streams idle: `failed` itself, or kLost when they could not be waited
/// for.
Error drained_error(Device& device, std::initializer_list<Stream> streams, Error failed);

} // namespace stillwake
