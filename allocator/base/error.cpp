// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/error.h"

namespace stillwake {

const char* to_string(ErrorCode code) {
  switch (code) {
  case ErrorCode::kOutOfDeviceMemory: return "out of device memory";
  case ErrorCode::kOutOfHostMemory: return "out of host memory";
  case ErrorCode::kOverBudget: return "over budget";
  case ErrorCode::kAsleep: return "asleep";
  case ErrorCode::kBusy: return "busy";
  case ErrorCode::kInvalidArgument: return "invalid argument";
  case ErrorCode::kDriverMissing: return "driver missing";
  case ErrorCode::kDriverTooOld: return "driver too old";
  case ErrorCode::kDriverCallFailed: return "driver call failed";
  case ErrorCode::kCorrupted: return "corrupted";
  case ErrorCode::kLost: return "lost";
  case ErrorCode::kRankFailed: return "rank failed";
  case ErrorCode::kTimedOut: return "timed out";
  }
  return "unknown error";
}

std::string Error::describe() const {
  std::string text = to_string(code);
  if (!message.empty()) {
    text += ": " + message;
  }
  if (call[0] != '\0') {
    text += std::string(" (") + call + ": CUDA error " + std::to_string(driver_error) + ")";
  }
  if (!note.empty()) {
    text += "; " + note;
  }
  return text;
}

} // namespace stillwake
