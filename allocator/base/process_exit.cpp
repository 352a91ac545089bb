// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/process_exit.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <pthread.h>
#include <vector>

namespace stillwake {
namespace {

// Set by handlers that run after main, or in a child: plain flags of the process, never reset.
std::atomic<bool> exiting{false};
std::atomic<bool> forked{false};
std::once_flag registered;

} // namespace

void watch_for_exit() {
  std::atexit([] { exiting = true; });
}

void note_process_start() {
  std::call_once(registered, [] {
    watch_for_exit();
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
  });
}

bool driver_is_out_of_reach() { return exiting || forked; }

void keep_within_reach(const void* leaked) {
  // Never destroyed: statics of any order come here at exit.
  // NOLINTBEGIN(bugprone-unhandled-exception-at-new): without memory at exit the process ends either way
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<const void*>;
  // NOLINTEND(bugprone-unhandled-exception-at-new)
  const std::lock_guard<std::mutex> lock(*mutex);
  kept->push_back(leaked);
}

} // namespace stillwake
