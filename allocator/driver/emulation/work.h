// SPDX-License-Identifier: Apache-2.0
// A Completion says whether one piece of a stream's work is done, and since when. Work is that piece: what must be done
// before it, and what it does.
#pragma once

#include "allocator/base/base.h"

#include <atomic>
#include <cuda.h>
#include <functional>
#include <memory>
#include <vector>

namespace stillwake::emulation {

class Completion {
public:
  bool done() const { return done_.load() != 0; }
  /// When it was done; read it only once it is.
  TimePoint at() const { return at_; }

  void complete() {
    at_ = std::chrono::steady_clock::now();
    done_.store(1);
    done_.notify_all();
  }
  void wait() const { done_.wait(0); }

private:
  std::atomic<int> done_{0}; // an int, because a futex is one
  TimePoint at_;             // written before done_
};

using CompletionPointer = std::shared_ptr<Completion>;

/// What a piece of work does on the stream's thread. Anything but CUDA_SUCCESS becomes the context's sticky error.
using Operation = std::function<CUresult()>;

struct Work {
  std::vector<CompletionPointer> after;
  Operation operation; ///< empty for a mark in the queue
  CompletionPointer done = std::make_shared<Completion>();
};

} // namespace stillwake::emulation
