// SPDX-License-Identifier: Apache-2.0
// Capturing streams, and graphs. What a capture forbids, and whether the refusal also spoils the capture, was asked of
// the hardware call by call (docs/design/emulated-driver.md).
#include "allocator/driver/emulation/state.h"

#include <algorithm>

namespace stillwake {

using emulation::CompletionPointer;
using emulation::StreamPointer;

namespace {

// The thread's, whatever context it is in, as the driver's is.
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool is_mode(CUstreamCaptureMode mode) {
  return mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
         mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

} // namespace

CUresult Emulation::State::exchange_capture_mode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || !is_mode(*mode)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

CUresult Emulation::State::begin_capture(CUstream handle, CUstreamCaptureMode mode) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  if (!is_mode(mode)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  StreamPointer stream;
  if (const CUresult result = find_stream(handle, *context, stream); result != CUDA_SUCCESS) {
    return result;
  }
  if (stream == stream->context.legacy) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->capture) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  auto capture = std::make_shared<Capture>();
  capture->origin = stream.get();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->streams = {stream.get()};
  stream->capture = capture;
  captures_.push_back(std::move(capture));
  return CUDA_SUCCESS;
}

CUresult Emulation::State::end_capture(CUstream handle, CUgraph* graph) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  if (graph == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *graph = nullptr;
  const std::lock_guard lock(mutex_);
  StreamPointer stream;
  if (const CUresult result = find_stream(handle, *context, stream); result != CUDA_SUCCESS) {
    return result;
  }
  const emulation::CapturePointer capture = stream->capture;
  if (!capture) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  if (capture->origin != stream.get()) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  } else if (capture->invalid) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!capture->joined()) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  end(*capture); // in each of these cases
  if (result == CUDA_SUCCESS) {
    *graph = new_handle<CUgraph>();
    graphs_[*graph] = std::make_shared<const emulation::Nodes>(std::move(capture->nodes));
  }
  return result;
}

CUresult Emulation::State::stream_is_capturing(CUstream handle, CUstreamCaptureStatus* status) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  if (status == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  StreamPointer stream;
  if (const CUresult result = find_stream(handle, *context, stream); result != CUDA_SUCCESS) {
    return result;
  }
  if (const CUresult result = refuse_implicit(*stream, false); result != CUDA_SUCCESS) {
    return result;
  }
  *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult Emulation::State::graph_instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(graph);
  if (exec == nullptr || found == graphs_.end() || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *exec = new_handle<CUgraphExec>();
  graph_execs_[*exec] = std::make_shared<emulation::GraphExec>(emulation::GraphExec{found->second, nullptr});
  return CUDA_SUCCESS;
}

CUresult Emulation::State::graph_launch(CUgraphExec exec, CUstream handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  const std::lock_guard lock(mutex_);
  const auto found = graph_execs_.find(exec);
  if (found == graph_execs_.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  StreamPointer stream;
  CUresult result = find_stream(handle, *context, stream);
  if (result == CUDA_SUCCESS) {
    result = refuse_implicit(*stream, true);
  }
  if (result != CUDA_SUCCESS) {
    return result;
  }
  emulation::GraphExec& launched = *found->second;
  std::vector<CompletionPointer> after;
  if (launched.last && !launched.last->done()) {
    after.push_back(launched.last);
  }
  CompletionPointer done;
  result = submit(
      *stream,
      [graph = launched.graph] {
        for (const emulation::Node& node : *graph) {
          if (const CUresult failed = node.operation(); failed != CUDA_SUCCESS) {
            return failed;
          }
        }
        return CUDA_SUCCESS;
      },
      std::move(after), &done);
  if (done) {
    launched.last = std::move(done);
  }
  return result;
}

CUresult Emulation::State::graph_destroy(CUgraph graph) {
  const std::lock_guard lock(mutex_);
  return graphs_.erase(graph) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Emulation::State::graph_exec_destroy(CUgraphExec exec) {
  const std::lock_guard lock(mutex_);
  return graph_execs_.erase(exec) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Emulation::State::refuse_implicit(const Stream& stream, bool invalidate) {
  if (&stream != stream.context.legacy.get()) {
    return CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : captures_) {
    const bool blocking = std::any_of(capture->streams.begin(), capture->streams.end(), [&](const Stream* one) {
      return one->blocking && &one->context == &stream.context;
    });
    if (blocking) {
      capture->invalid = capture->invalid || invalidate;
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return result;
}

CUresult Emulation::State::refuse_unsafe() {
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : captures_) {
    if (capture->forbids_unsafe_calls(thread_mode)) {
      capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

CUresult Emulation::State::refuse_capturing_context(const Context& context) {
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : captures_) {
    const bool here = std::any_of(capture->streams.begin(), capture->streams.end(),
                                  [&](const Stream* one) { return &one->context == &context; });
    if (here) {
      capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

CUresult Emulation::State::refuse_captured(const Event& event) {
  if (!event.captured) {
    return CUDA_SUCCESS;
  }
  const emulation::CapturePointer capture = event.capture.lock();
  if (!capture || capture->invalid) {
    return CUDA_ERROR_INVALID_VALUE; // until it is recorded again it stands for nothing
  }
  capture->invalid = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult Emulation::State::join_capture(const StreamPointer& stream, const Event& event) {
  const emulation::CapturePointer capture = event.capture.lock();
  if (!capture) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (stream->capture && stream->capture != capture) {
    stream->capture->invalid = true;
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (capture->invalid) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  if (!stream->capture) {
    if (stream == stream->context.legacy) {
      capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream->capture = capture;
    capture->streams.push_back(stream.get());
  }
  for (int node : event.frontier) {
    if (std::find(stream->frontier.begin(), stream->frontier.end(), node) == stream->frontier.end()) {
      stream->frontier.push_back(node);
    }
  }
  return CUDA_SUCCESS;
}

void Emulation::State::end(Capture& capture) {
  for (Stream* stream : capture.streams) {
    stream->frontier.clear();
    stream->capture.reset();
  }
  std::erase_if(captures_, [&](const emulation::CapturePointer& one) { return one.get() == &capture; });
}

} // namespace stillwake
