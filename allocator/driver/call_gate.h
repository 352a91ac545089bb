// SPDX-License-Identifier: Apache-2.0
// The CallGate stands before every driver call: it counts, and it makes calls fail on demand, on the real driver and on
// the emulated one alike. An injected failure means that the call was not made.
#pragma once

#include "allocator/base/base.h"
#include "allocator/driver/calls.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace stillwake {

/// One call that is to fail: the nth (1 is the next) made to `call`, or to any call when `call` is empty.
struct Fault {
  std::optional<CallId> call;
  std::uint64_t nth = 1;
  CUresult error = CUDA_ERROR_UNKNOWN;
  bool persistent = false; ///< From the nth on every such call fails, not just the one.
};

class CallGate {
public:
  /// Reads faults from "cuMemCreate:3", "cuMemMap:2=CUDA_ERROR_NOT_READY", "*:17", "cuMemCreate:1+" (the + means "and
  /// all later ones"), comma separated. The error is CUDA_ERROR_OUT_OF_MEMORY for calls that take memory, else
  /// _UNKNOWN.
  [[nodiscard]] static Result<std::vector<Fault>> parse(std::string_view text);

  /// Replaces the faults that are armed and starts their counts at zero; empty disarms. Any thread.
  void arm(std::vector<Fault> faults);
  /// The number of injected failures since `arm`.
  std::uint64_t injected() const { return injected_; }
  /// Whether this thread's last call of that name was made to fail by the faults that are armed now.
  bool was_injected(CallId call) const;

  std::uint64_t calls(CallId call) const { return calls_[static_cast<std::size_t>(call)]; }
  std::uint64_t failures(CallId call) const { return failures_[static_cast<std::size_t>(call)]; }
  /// All calls since the driver was opened.
  std::uint64_t calls() const;

  /// Called by the table before a call: the error to return instead of calling, or CUDA_SUCCESS.
  CUresult enter(CallId call);
  /// Called by the table after a call. CUDA_ERROR_NOT_READY is an answer, not a failure.
  void leave(CallId call, CUresult result);

private:
  struct ArmedFault {
    Fault fault;
    std::uint64_t seen = 0;
  };
  static constexpr std::size_t kCalls = static_cast<std::size_t>(CallId::kCount);

  std::array<std::atomic<std::uint64_t>, kCalls> calls_{};
  std::array<std::atomic<std::uint64_t>, kCalls> failures_{};
  std::atomic<bool> armed_{false};
  std::atomic<std::uint64_t> injected_{0};
  std::atomic<std::uint64_t> arming_{0}; ///< tells one `arm` from every other, of any gate
  RankedMutex mutex_{LockRank::kDriver};
  std::vector<ArmedFault> faults_; // guarded by mutex_
};

} // namespace stillwake
