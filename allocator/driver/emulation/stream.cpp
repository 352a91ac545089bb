// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/stream.h"

#include "allocator/driver/emulation/context.h"

namespace stillwake::emulation {

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

Result<void> Stream::enqueue(Work work) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      auto started = start_thread("the work of an emulated stream of device " + std::to_string(context.device.value()),
                                  [this] { run(); });
      STILLWAKE_TRY(started);
      thread_ = std::move(*started);
    }
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
  return {};
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    {
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      for (const CompletionPointer& before : work.after) {
        before->wait();
      }
      // A context that is dead does nothing any more, but whoever waits for it is let go.
      if (work.operation && context.error() == CUDA_SUCCESS) {
        context.set_error(work.operation());
      }
      work.done->complete();
    } // what the work held goes before the lock is taken again
    lock.lock();
  }
}

} // namespace stillwake::emulation
