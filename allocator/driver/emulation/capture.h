// SPDX-License-Identifier: Apache-2.0
// A Capture is the work that streams note down instead of doing it; a Graph is a capture that ended well. A graph runs
// its nodes in the order in which they were captured, which every dependency between them allows.
// All of it is guarded by the mutex of Emulation::State, but for a graph's nodes, which never change.
#pragma once

#include "allocator/driver/emulation/context.h"

namespace stillwake::emulation {

struct Node {
  Operation operation;
  std::vector<int> after; ///< nodes of the same capture, by their place
};
using Nodes = std::vector<Node>;

struct Capture {
  Stream* origin; ///< the stream that began it, and alone may end it
  CUstreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
  Nodes nodes;
  std::vector<Stream*> streams; ///< the origin, and those that joined by an event

  /// Adds a node behind everything that the stream has seen.
  void add(Stream& stream, Operation operation) {
    nodes.push_back({std::move(operation), stream.frontier});
    stream.frontier = {static_cast<int>(nodes.size()) - 1};
  }

  /// Whether all work of the other streams comes before where the origin stands.
  bool joined() const;
  /// Whether an unsafe call of the calling thread, which is in `thread_mode`, must fail while this capture runs: the
  /// rule of cuThreadExchangeStreamCaptureMode.
  bool forbids_unsafe_calls(CUstreamCaptureMode thread_mode) const {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
      return false;
    }
    return thread == std::this_thread::get_id() ||
           (mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  }
};
using CapturePointer = std::shared_ptr<Capture>;

using Graph = std::shared_ptr<const Nodes>;

struct GraphExec {
  Graph graph;
  CompletionPointer last; ///< two launches of one executable graph run one after the other
};

} // namespace stillwake::emulation
