// SPDX-License-Identifier: Apache-2.0
// While RefusedThreads lives, the system gives no thread for what its text names. One at a time.
#pragma once

#include "allocator/base/base.h"

#include <atomic>
#include <cerrno>
#include <string>

namespace stillwake {

class RefusedThreads {
public:
  /// Refuses every thread whose purpose has `part` in it, after the first `allowed` of them.
  explicit RefusedThreads(const std::string& part, int allowed = 0) {
    part_ = part;
    allowed_ = allowed;
    refused_ = 0;
    refuse_threads(refusal);
  }
  ~RefusedThreads() { refuse_threads(nullptr); }
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;

  static int refused() { return refused_; }

private:
  static int refusal(const std::string& what) {
    if (what.find(part_) == std::string::npos || allowed_-- > 0) {
      return 0;
    }
    ++refused_;
    return EAGAIN;
  }
  inline static std::string part_;
  inline static std::atomic<int> allowed_{0};
  inline static std::atomic<int> refused_{0};
};

} // namespace stillwake
