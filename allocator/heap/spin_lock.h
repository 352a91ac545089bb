// SPDX-License-Identifier: Apache-2.0
// A SpinLock guards a few instructions: one atomic exchange to take, one store to give back. Whoever holds it takes no
// other lock but the queue of frees, and calls nothing that can wait; so it has no rank.
#pragma once

#include <atomic>
#include <thread>

namespace stillwake {

class SpinLock {
public:
  void lock() {
    while (taken_.exchange(true, std::memory_order_acquire)) {
      wait();
    }
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

private:
  void wait() {
    // Reads only, so that the line stays shared; the holder may have lost its core, so soon gives the own one away.
    constexpr int kLooks = 128;
    for (int look = 0; look < kLooks; ++look) {
      if (!taken_.load(std::memory_order_relaxed)) {
        return;
      }
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    }
    std::this_thread::yield();
  }

  std::atomic<bool> taken_{false};
};

} // namespace stillwake
