// SPDX-License-Identifier: Apache-2.0
// A Cleanup runs its step when the scope ends, unless it was cancelled: the undo of one step that succeeded.
#pragma once

#include <utility>

namespace stillwake {

template <class Step> class [[nodiscard]] Cleanup {
public:
  explicit Cleanup(Step step) : step_(std::move(step)) {}
  ~Cleanup() {
    if (armed_) {
      step_();
    }
  }
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;

  /// The work succeeded: nothing is undone.
  void cancel() { armed_ = false; }

private:
  Step step_;
  bool armed_ = true;
};

} // namespace stillwake
