// SPDX-License-Identifier: Apache-2.0
// A Context is the primary context of one device: its streams, and the error that kills it.
// CurrentContexts is the stack of current contexts that each thread has for each emulation.
#pragma once

#include "allocator/driver/emulation/stream.h"

#include "allocator/base/base.h"

#include <atomic>
#include <map>
#include <thread>
#include <unordered_map>
#include <vector>

namespace stillwake::emulation {

struct Context {
  Context(DeviceIndex device, CUcontext handle) : device(device), handle(handle) {}

  const DeviceIndex device;
  const CUcontext handle;

  CUresult error() const { return error_.load(); }
  /// The first error stays.
  void set_error(CUresult error) {
    CUresult none = CUDA_SUCCESS;
    error_.compare_exchange_strong(none, error);
  }

  std::atomic<int> retained{0};

  // Guarded by the mutex of Emulation::State.

  StreamPointer legacy;
  std::map<std::thread::id, StreamPointer> per_thread;
  std::unordered_map<CUstream, StreamPointer> streams;
  std::vector<StreamPointer> retiring; ///< destroyed by the user while they had work

  template <class Visit> void for_each_stream(Visit&& visit) const {
    if (legacy) {
      visit(legacy);
    }
    for (const auto& [thread, stream] : per_thread) {
      visit(stream);
    }
    for (const auto& [handle, stream] : streams) {
      visit(stream);
    }
    for (const StreamPointer& stream : retiring) {
      visit(stream);
    }
  }
  /// What the context still has to do.
  std::vector<CompletionPointer> unfinished() const {
    std::vector<CompletionPointer> all;
    for_each_stream([&](const StreamPointer& stream) {
      if (stream->busy()) {
        all.push_back(stream->tail);
      }
    });
    return all;
  }

private:
  std::atomic<CUresult> error_{CUDA_SUCCESS};
};

class CurrentContexts {
public:
  CurrentContexts();
  void push(Context& context);
  /// Null when the thread has none.
  Context* pop();
  Context* top() const;

private:
  std::vector<Context*>& stack() const;
  const std::uint64_t id_; // never used again, so a thread's stack of a dead emulation is never mistaken for ours
};

/// Whether this thread runs a host function of a stream: then the driver answers no call.
bool& in_host_function();

} // namespace stillwake::emulation
