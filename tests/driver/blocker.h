// SPDX-License-Identifier: Apache-2.0
// A Blocker is work that holds a stream until it is told to let go. One at a time: a driver runs host functions one by
// one. It lets go at the end of its scope and stays until the driver has left it.
#pragma once

#include "allocator/driver/driver_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace stillwake {

class Blocker {
public:
  Blocker() = default;
  Blocker(const Blocker&) = delete;
  ~Blocker() {
    let_go();
    // Bounded: on a context that died meanwhile the function never runs.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (held_ && !left_ && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
  }

  void hold(DriverTable& table, CUstream stream) {
    const CUresult launched = table.cuLaunchHostFunc(stream, &wait, this);
    EXPECT_EQ(static_cast<int>(launched), 0);
    held_ = launched == CUDA_SUCCESS;
  }
  void let_go() { let_go_ = true; }

private:
  static void wait(void* at) {
    Blocker* self = static_cast<Blocker*>(at);
    while (!self->let_go_) {
      std::this_thread::yield();
    }
    self->left_ = true; // the last touch
  }

  std::atomic<bool> let_go_{false};
  std::atomic<bool> left_{false};
  bool held_ = false;
};

} // namespace stillwake
