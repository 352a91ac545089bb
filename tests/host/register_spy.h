// SPDX-License-Identifier: Apache-2.0
// A RegisterSpy stands in a driver table before cuMemHostRegister: it notes what is registered, in order, and can hold
// registrations back, so that a test decides what is pinned when. Calls that it lets pass are counted twice.
#pragma once

#include "allocator/driver/driver_layer.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace stillwake {

class RegisterSpy {
public:
  struct Registration {
    void* address;
    Bytes size;
    std::thread::id thread;
  };

  explicit RegisterSpy(DriverTable& table) : table_(table), real_(table.cuMemHostRegister) {
    table_.cuMemHostRegister.bind_method<&RegisterSpy::call>(table_.gate, CallId::cuMemHostRegister, *this);
  }
  ~RegisterSpy() { table_.cuMemHostRegister = real_; }

  /// From now on a registration of any address but `first` waits for `release`.
  void hold_all_but(void* first) {
    const std::lock_guard<std::mutex> lock(mutex_);
    allowed_ = first;
    holding_ = true;
  }
  void release() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      holding_ = false;
    }
    changed_.notify_all();
  }
  /// Waits until so many registrations are held back.
  void wait_for_held(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return held_ >= count; });
  }
  std::vector<Registration> seen() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return seen_;
  }

  /// The most calls that were under way at one time.
  int most_at_once() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return most_at_once_;
  }

  CUresult call(void* address, std::size_t size, unsigned flags) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      seen_.push_back({address, Bytes(size), std::this_thread::get_id()});
      most_at_once_ = std::max(most_at_once_, ++inside_);
      if (holding_ && address != allowed_) {
        ++held_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return !holding_; });
        --held_;
      }
    }
    const CUresult result = real_(address, size, flags);
    const std::lock_guard<std::mutex> lock(mutex_);
    --inside_;
    return result;
  }

private:
  DriverTable& table_;
  decltype(DriverTable::cuMemHostRegister) real_;
  std::mutex mutex_;
  std::condition_variable changed_;
  void* allowed_ = nullptr;
  bool holding_ = false;
  int held_ = 0;
  int inside_ = 0;
  int most_at_once_ = 0;
  std::vector<Registration> seen_;
};

} // namespace stillwake
