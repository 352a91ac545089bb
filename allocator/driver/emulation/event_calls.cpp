// SPDX-License-Identifier: Apache-2.0
// Calls about events, and a stream's wait for one.
#include "allocator/driver/emulation/state.h"

#include <algorithm>

namespace stillwake {

using emulation::CompletionPointer;
using emulation::StreamPointer;

CUresult Emulation::State::event_create(CUevent* event, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if (event == nullptr || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  const auto handle = new_handle<CUevent>();
  events_[handle] = std::make_shared<Event>(Event{*context, flags, false, {}, {}, false, {}, {}});
  *event = handle;
  return CUDA_SUCCESS;
}

CUresult Emulation::State::event_destroy(CUevent event) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Event> found;
  if (const CUresult result = find_event(event, found); result != CUDA_SUCCESS) {
    return result;
  }
  events_.erase(event); // waits that were queued hold on to its work
  return CUDA_SUCCESS;
}

CUresult Emulation::State::event_record(CUevent event, CUstream handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Event> found;
  StreamPointer stream;
  CUresult result = find_event(event, found);
  if (result == CUDA_SUCCESS) {
    result = find_stream(handle, *context, stream);
  }
  if (result == CUDA_SUCCESS && &found->context != &stream->context) {
    result = CUDA_ERROR_INVALID_HANDLE;
  }
  if (result == CUDA_SUCCESS) {
    result = refuse_implicit(*stream, true);
  }
  if (result == CUDA_SUCCESS && stream->capture && stream->capture->invalid) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CompletionPointer mark; // null: nothing is before it
  if (stream->capture == nullptr && !before(*stream).empty()) {
    if (result = submit(*stream, {}, {}, &mark); result != CUDA_SUCCESS) {
      return result;
    }
  } else if (stream->capture == nullptr && stream->busy()) {
    mark = stream->tail;
  }
  found->recorded = true;
  found->work.clear();
  found->captured = stream->capture != nullptr;
  found->capture = stream->capture;
  found->frontier = stream->frontier;
  found->recorded_at = std::chrono::steady_clock::now();
  if (mark != nullptr) {
    found->work.push_back(std::move(mark));
  }
  return CUDA_SUCCESS;
}

CUresult Emulation::State::event_query(CUevent event) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Event> found;
  CUresult result = find_event(event, found);
  if (result == CUDA_SUCCESS) {
    result = refuse_captured(*found);
  }
  if (result == CUDA_SUCCESS) {
    result = refuse_unsafe();
  }
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return found->done() ? found->context.error() : CUDA_ERROR_NOT_READY;
}

CUresult Emulation::State::event_synchronize(CUevent event) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  std::vector<CompletionPointer> work;
  std::shared_ptr<Event> found;
  {
    const std::lock_guard lock(mutex_);
    CUresult result = find_event(event, found);
    if (result == CUDA_SUCCESS) {
      result = refuse_captured(*found);
    }
    if (result == CUDA_SUCCESS) {
      result = refuse_unsafe();
    }
    if (result != CUDA_SUCCESS) {
      return result;
    }
    work = found->work;
  }
  return wait_for(work, found->context);
}

CUresult Emulation::State::event_elapsed_time(float* milliseconds, CUevent start, CUevent end) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  if (milliseconds == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Event> from, to;
  CUresult result = find_event(start, from);
  if (result == CUDA_SUCCESS) {
    result = find_event(end, to);
  }
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (from->captured || to->captured) {
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  const auto timed = [](const Event& one) { return one.recorded && (one.flags & CU_EVENT_DISABLE_TIMING) == 0; };
  if (!timed(*from) || !timed(*to) || &from->context != &to->context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!from->done() || !to->done()) {
    return CUDA_ERROR_NOT_READY;
  }
  *milliseconds = static_cast<float>(seconds(to->at() - from->at()) * 1e3);
  return CUDA_SUCCESS;
}

CUresult Emulation::State::stream_wait_event(CUstream handle, CUevent event, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  if (flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Event> found;
  StreamPointer stream;
  CUresult result = find_event(event, found);
  if (result == CUDA_SUCCESS) {
    result = find_stream(handle, *context, stream);
  }
  if (result == CUDA_SUCCESS) {
    result = refuse_implicit(*stream, true);
  }
  if (result != CUDA_SUCCESS || !found->recorded) {
    return result;
  }
  if (found->captured) {
    return join_capture(stream, *found);
  }
  if (stream->capture) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  return found->done() ? CUDA_SUCCESS : submit(*stream, {}, found->work, nullptr);
}

CUresult Emulation::State::find_event(CUevent handle, std::shared_ptr<Event>& event) {
  const auto found = events_.find(handle);
  if (found == events_.end()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  event = found->second;
  return event->context.error();
}

} // namespace stillwake
