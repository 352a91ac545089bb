// SPDX-License-Identifier: Apache-2.0
#include "shard/quiesce.h"

#include <algorithm>

namespace stillwake {
namespace {

// A capture is an answer to the question, not a failure of the call.
bool speaks_of_capture(CUresult result) {
  return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
         result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

Error capture_error(Device& device, CallId told_by) {
  Error error;
  error.code = ErrorCode::kBusy;
  error.message = "a graph is being captured on device " + std::to_string(device.index().value()) + " (told by " +
                  to_string(told_by) + "); end the capture first";
  error.note = note_of(device.table(), told_by);
  return error;
}

Result<void> synchronize(Device& device) {
  const CUresult result = device.table().cuCtxSynchronize();
  if (speaks_of_capture(result)) {
    return failure(capture_error(device, CallId::cuCtxSynchronize));
  }
  return check_call(device.table(), CallId::cuCtxSynchronize, result, "waiting for the device");
}

} // namespace

Result<void> refuse_captures(Device& device, const std::vector<Stream>& streams) {
  STILLWAKE_ENTER(device);
  for (Stream stream : streams) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = device.table().cuStreamIsCapturing(stream, &status);
    if (speaks_of_capture(result) || status != CU_STREAM_CAPTURE_STATUS_NONE) {
      return failure(capture_error(device, CallId::cuStreamIsCapturing));
    }
    if (result != CUDA_SUCCESS) {
      return failure(driver_error(device.table(), CallId::cuStreamIsCapturing, result,
                                  "looking for captures on stream " + hexadecimal(stream)));
    }
  }
  return {};
}

Result<void> quiesce(Device& device, std::optional<Duration> timeout) {
  STILLWAKE_ENTER(device);
  DriverTable& table = device.table();
  if (!timeout || !device.features().context_event) {
    return synchronize(device);
  }
  auto event = OwnedEvent::create(device);
  STILLWAKE_TRY(event);
  const CUresult recorded = table.cuCtxRecordEvent(device.context(), event->get());
  if (speaks_of_capture(recorded)) {
    return failure(capture_error(device, CallId::cuCtxRecordEvent));
  }
  STILLWAKE_TRY(check_call(table, CallId::cuCtxRecordEvent, recorded, "recording an event of the context"));
  const TimePoint begin = table.clock->now();
  Duration pause = std::chrono::microseconds(20);
  while (true) {
    auto done = event->done();
    STILLWAKE_TRY(done);
    if (*done) {
      return {};
    }
    const Duration waited = table.clock->now() - begin;
    if (waited >= *timeout) {
      return failure(ErrorCode::kTimedOut, "work on device " + std::to_string(device.index().value()) +
                                               " was not done after " + std::to_string(seconds(waited)) +
                                               " s; nothing was changed");
    }
    table.clock->sleep_for(std::min(pause, *timeout - waited));
    pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(2));
  }
}

} // namespace stillwake
