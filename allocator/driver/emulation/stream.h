// SPDX-License-Identifier: Apache-2.0
// A Stream is a thread that does its work in order. It starts with its first work, so that a stream that is never used
// costs nothing.
#pragma once

#include "allocator/driver/emulation/work.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace stillwake::emulation {

struct Capture;
struct Context;

class Stream {
public:
  Stream(Context& context, CUstream handle, bool blocking) : context(context), handle(handle), blocking(blocking) {}
  /// Waits for all of its work.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Errors: kOutOfHostMemory when the first work finds no thread; it is not queued.
  [[nodiscard]] Result<void> enqueue(Work work);

  Context& context;
  const CUstream handle;
  const bool blocking; ///< waits for the legacy stream, and the legacy stream for it

  // Guarded by the mutex of Emulation::State.

  CompletionPointer tail; ///< the last work, null before the first
  bool busy() const { return tail != nullptr && !tail->done(); }
  std::shared_ptr<Capture> capture; ///< null while work runs as it comes
  std::vector<int> frontier;        ///< while capturing: the nodes that the next one comes after

private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> queue_; // guarded by mutex_, as is stopping_
  bool stopping_ = false;
  std::thread thread_;
};

using StreamPointer = std::shared_ptr<Stream>;

} // namespace stillwake::emulation
