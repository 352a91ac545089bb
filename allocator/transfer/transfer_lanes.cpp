// SPDX-License-Identifier: Apache-2.0
#include "allocator/transfer/transfer_lanes.h"

namespace stillwake {
namespace {

constexpr int kAttempts = 3;

Result<void> drain_once(Device& device, Stream stream) {
  STILLWAKE_ENTER(device);
  return STILLWAKE_CALL(device.table(), "waiting for copies after a failure", cuStreamSynchronize, stream);
}

Result<void> drain_device_once(Device& device) {
  STILLWAKE_ENTER(device);
  return STILLWAKE_CALL(device.table(), "waiting for the device after a failure", cuCtxSynchronize);
}

} // namespace

Result<TransferLanes> TransferLanes::create(Device& device) {
  TransferLanes lanes;
  for (OwnedStream* stream : {&lanes.out, &lanes.save_hash, &lanes.in, &lanes.in_hash}) {
    Result<OwnedStream> made = OwnedStream::create(device);
    STILLWAKE_TRY(made);
    *stream = std::move(*made);
  }
  return lanes;
}

Result<void> drain(Device& device, std::initializer_list<Stream> streams) {
  for (const Stream stream : streams) {
    Result<void> idle = drain_once(device, stream);
    // A lost context answers at once, so that trying again costs nothing; anything else deserves it.
    for (int attempt = 1; !idle && attempt < kAttempts; ++attempt) {
      idle = drain_once(device, stream);
    }
    if (!idle) {
      idle = drain_device_once(device);
    }
    if (!idle) {
      Error error = idle.error();
      error.code = ErrorCode::kLost;
      return failure(std::move(error));
    }
  }
  return {};
}

Error drained_error(Device& device, std::initializer_list<Stream> streams, Error failed) {
  Result<void> idle = drain(device, streams);
  return idle ? std::move(failed) : std::move(idle).error();
}

} // namespace stillwake
