// SPDX-License-Identifier: Apache-2.0
// Calls about streams, and the order between them.
#include "allocator/driver/emulation/refusal_note.h"
#include "allocator/driver/emulation/state.h"

#include <algorithm>

namespace stillwake {

using emulation::CompletionPointer;
using emulation::StreamPointer;

CUresult Emulation::State::stream_create(CUstream* stream, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  if (stream == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  retire_idle(*context);
  const auto handle = new_handle<CUstream>();
  context->streams[handle] = std::make_shared<Stream>(*context, handle, (flags & CU_STREAM_NON_BLOCKING) == 0);
  *stream = handle;
  return CUDA_SUCCESS;
}

CUresult Emulation::State::stream_destroy(CUstream handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  StreamPointer idle; // its thread is joined outside the lock
  const std::lock_guard lock(mutex_);
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  StreamPointer stream;
  if (const CUresult result = find_stream(handle, *context, stream); result != CUDA_SUCCESS) {
    return result;
  }
  if (const auto capture = stream->capture) {
    capture->invalid = true;
    if (capture->origin == stream.get()) {
      end(*capture);
    } else {
      std::erase(capture->streams, stream.get());
    }
  }
  Context& owner = stream->context;
  owner.streams.erase(handle);
  retire_idle(owner);
  if (stream->busy()) {
    owner.retiring.push_back(std::move(stream)); // the driver, too, lets it finish
  } else {
    idle = std::move(stream);
  }
  return CUDA_SUCCESS;
}

CUresult Emulation::State::stream_synchronize(CUstream handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  std::vector<CompletionPointer> work;
  StreamPointer stream;
  {
    const std::lock_guard lock(mutex_);
    CUresult result = find_stream(handle, *context, stream);
    if (result == CUDA_SUCCESS) {
      result = refuse_implicit(*stream, true);
    }
    if (result == CUDA_SUCCESS && stream->capture) {
      stream->capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (result == CUDA_SUCCESS) {
      result = refuse_unsafe();
    }
    if (result != CUDA_SUCCESS) {
      return result;
    }
    if (stream == stream->context.legacy) {
      work = before(*stream);
    }
    if (stream->busy()) {
      work.push_back(stream->tail);
    }
  }
  return wait_for(work, stream->context);
}

CUresult Emulation::State::stream_query(CUstream handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(context); result != CUDA_SUCCESS) {
    return result;
  }
  const std::lock_guard lock(mutex_);
  StreamPointer stream;
  CUresult result = find_stream(handle, *context, stream);
  if (result == CUDA_SUCCESS) {
    result = refuse_implicit(*stream, true);
  }
  if (result == CUDA_SUCCESS && stream->capture) {
    stream->capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (result == CUDA_SUCCESS) {
    result = refuse_unsafe();
  }
  if (result != CUDA_SUCCESS) {
    return result;
  }
  // A blocking stream does not answer for the legacy stream's work, but the legacy stream for theirs.
  const bool busy = stream->busy() || (stream == stream->context.legacy && !before(*stream).empty());
  return busy ? CUDA_ERROR_NOT_READY : stream->context.error();
}

CUresult Emulation::State::stream_get_context(CUstream handle, CUcontext* context) {
  Context* current = nullptr;
  if (const CUresult result = enter(current); result != CUDA_SUCCESS) {
    return result;
  }
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(mutex_);
  StreamPointer stream;
  const CUresult result = find_stream(handle, *current, stream);
  if (result == CUDA_SUCCESS) {
    *context = stream->context.handle;
  }
  return result;
}

CUresult Emulation::State::find_stream(CUstream handle, Context& current, StreamPointer& stream) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    StreamPointer& place =
        handle == CU_STREAM_PER_THREAD ? current.per_thread[std::this_thread::get_id()] : current.legacy;
    if (!place) {
      place = std::make_shared<Stream>(current, handle, true);
    }
    stream = place;
    return CUDA_SUCCESS;
  }
  for (const auto& context : contexts_) {
    const auto found = context->streams.find(handle);
    if (found != context->streams.end()) {
      stream = found->second;
      return context->error();
    }
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

void Emulation::State::retire_idle(Context& context) {
  std::erase_if(context.retiring, [](const StreamPointer& stream) { return !stream->busy(); });
}

std::vector<CompletionPointer> Emulation::State::before(const Stream& stream) const {
  const Context& context = stream.context;
  std::vector<CompletionPointer> all;
  if (&stream == context.legacy.get()) {
    context.for_each_stream([&](const StreamPointer& other) {
      if (other.get() != &stream && other->blocking && other->busy()) {
        all.push_back(other->tail);
      }
    });
  } else if (stream.blocking && context.legacy && context.legacy->busy()) {
    all.push_back(context.legacy->tail);
  }
  return all;
}

CUresult Emulation::State::submit(Stream& stream, Operation operation, std::vector<CompletionPointer> after,
                                  CompletionPointer* done) {
  if (done != nullptr) {
    done->reset();
  }
  if (stream.capture) {
    if (stream.capture->invalid) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    stream.capture->add(stream, std::move(operation));
    return CUDA_SUCCESS;
  }
  emulation::Work work;
  work.after = before(stream);
  work.after.insert(work.after.end(), after.begin(), after.end());
  work.operation = std::move(operation);
  const CompletionPointer completion = work.done;
  if (const auto queued = stream.enqueue(std::move(work)); !queued) {
    emulation::note_refusal(queued.error().message);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  stream.tail = completion;
  if (done != nullptr) {
    *done = completion;
  }
  return CUDA_SUCCESS;
}

} // namespace stillwake
