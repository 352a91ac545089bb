// SPDX-License-Identifier: Apache-2.0
// An Error is an expected failure as a value: what kind, which driver call said so, and a sentence with the figures.
// Out of memory has codes of its own, so that "full" is never taken for "broken".
#pragma once

#include <string>

namespace stillwake {

/// Every kind of failure a caller can meet. The C interface has the same numbers: append only.
enum class ErrorCode {
  kOutOfDeviceMemory = 1, ///< The device has too few free bytes; something else may free some.
  kOutOfHostMemory = 2,   ///< The system refused to give or to pin host memory.
  kOverBudget = 3,        ///< The host budget (the user's or the cgroup's) would be exceeded.
  kAsleep = 4,            ///< The shard sleeps; wake it first.
  kBusy = 5,              ///< A transition or a capture is under way, or the content changed meanwhile.
  kInvalidArgument = 6,   ///< The caller's value is wrong; the message names it and what would be right.
  kDriverMissing = 7,     ///< No CUDA driver on this machine, and the emulation was not asked for.
  kDriverTooOld = 8,      ///< The driver lacks a call that is needed; the message names it.
  kDriverCallFailed = 9,  ///< Any other failure of a driver call.
  kCorrupted = 10,        ///< A wake's verdict was bad: the restored bytes are not those that were saved.
  kLost = 11,             ///< The device's context is dead (sticky error): nothing on it can be used again.
  kRankFailed = 12,       ///< Another rank failed or gave no verdict in time.
  kTimedOut = 13,         ///< The time given by the caller ran out.
};

/// The code's name in words, "out of device memory" for instance.
const char* to_string(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kDriverCallFailed;
  int driver_error = 0;  ///< The driver's own CUresult, 0 where no driver call failed.
  const char* call = ""; ///< The driver call that failed, "" where none did. A literal.
  std::string message;   ///< One sentence with the figures.
  /// What the driver's error alone does not tell: that the fault was injected, or why the emulation has no memory.
  /// "" otherwise.
  std::string note = {};

  /// "out of device memory: <message> (cuMemCreate: CUDA error 2); <note>".
  std::string describe() const;
};

} // namespace stillwake
