// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/pinning_workers.h"

#include <algorithm>

namespace stillwake {
namespace {

constexpr int kDefaultThreads = 16; // more gain nothing: facts of an H200 machine in docs/design/host-arena.md
constexpr int kMostThreads = 256;

std::size_t threads_for(int count) {
  if (count == 0) {
    return static_cast<std::size_t>(
        std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kDefaultThreads));
  }
  return static_cast<std::size_t>(std::clamp(count, 1, kMostThreads));
}

} // namespace

PinningWorkers::PinningWorkers(int count) : wanted_(threads_for(count)) {}

PinningWorkers::~PinningWorkers() {
  {
    RankedLock lock(mutex_);
    STILLWAKE_CHECK(queue_.empty());
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void PinningWorkers::set_count(int count) {
  RankedLock lock(mutex_);
  wanted_ = threads_for(count);
}

bool PinningWorkers::submit(PinningWork& work) {
  RankedLock lock(mutex_);
  if (wanted_ == 1) {
    return false;
  }
  // Fewer threads only when no other work counts on those that there are.
  active_ = queue_.empty() ? wanted_ : std::max(active_, wanted_);
  threads_.reserve(active_);
  while (threads_.size() < active_) {
    auto started = start_thread("pinning host memory", [this, index = threads_.size()] { run(index); });
    if (!started) { // those that there are do, or else the caller
      active_ = threads_.size();
      break;
    }
    threads_.push_back(std::move(*started));
  }
  if (active_ == 0) {
    return false;
  }
  queue_.push_back(&work);
  changed_.notify_all();
  return true;
}

void PinningWorkers::withdraw(PinningWork& work) {
  RankedLock lock(mutex_);
  std::erase(queue_, &work);
  changed_.wait(lock, [&] { return work.inside_ == 0; });
}

void PinningWorkers::run(std::size_t index) {
  RankedLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (index < active_ && !queue_.empty()); });
    if (stopping_) {
      return;
    }
    PinningWork* work = queue_.front();
    queue_.pop_front();
    queue_.push_back(work);
    ++work->inside_;
    lock.unlock();
    const bool more = work->step();
    lock.lock();
    --work->inside_;
    if (!more) {
      std::erase(queue_, work);
    }
    if (work->inside_ == 0) {
      changed_.notify_all();
    }
  }
}

} // namespace stillwake
