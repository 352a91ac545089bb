// SPDX-License-Identifier: Apache-2.0
// What a capture refuses, and what ends it.
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

#include <thread>

namespace stillwake {
namespace {

class CaptureInvalid : public Conformance {
protected:
  CUresult begin(const TestStream& stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    return table().cuStreamBeginCapture(stream.get(), mode);
  }
  CUstreamCaptureStatus status(const TestStream& stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamIsCapturing(stream.get(), &status));
    return status;
  }
  /// Records the event on a stream that no capture knows, and waits for it.
  void record_and_wait(const TestEvent& event) {
    const TestStream other(table());
    ASSERT_ANSWER(CUDA_SUCCESS, table().cuEventRecord(event.get(), other.get()));
    ASSERT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(other.get()));
  }
  /// Ends a capture that something has spoilt: there is no graph.
  void end_spoilt(const TestStream& stream, CUresult answer = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
    CUgraph graph = nullptr;
    EXPECT_ANSWER(answer, table().cuStreamEndCapture(stream.get(), &graph));
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream.get())) << "the stream works again";
  }
  /// Ends a capture that nothing has harmed.
  void end_whole(const TestStream& stream) {
    CUgraph graph = nullptr;
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamEndCapture(stream.get(), &graph));
    if (graph != nullptr) {
      EXPECT_ANSWER(CUDA_SUCCESS, table().cuGraphDestroy(graph));
    }
  }
};

TEST_F(CaptureInvalid, WaitingForACapturingStreamSpoilsTheCapture) {
  const TestStream stream(table());
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, table().cuStreamSynchronize(stream.get()));
  EXPECT_EQ(status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  end_spoilt(stream);
}

TEST_F(CaptureInvalid, AskingACapturingStreamSpoilsTheCapture) {
  const TestStream stream(table());
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, table().cuStreamQuery(stream.get()));
  end_spoilt(stream);
}

TEST_F(CaptureInvalid, WaitingForTheContextSpoilsTheCapture) {
  const TestStream stream(table());
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, table().cuCtxSynchronize());
  end_spoilt(stream);
}

TEST_F(CaptureInvalid, AContextEventSpoilsTheCapture) {
  if (!table().cuCtxRecordEvent) {
    GTEST_SKIP() << "this driver has no events on a context";
  }
  const TestStream stream(table());
  const TestEvent event(table());
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, table().cuCtxRecordEvent(device().context(), event.get()));
  end_spoilt(stream);
}

TEST_F(CaptureInvalid, AskingAnyEventSpoilsAGlobalCaptureOnly) {
  const TestStream stream(table());
  const TestEvent event(table());
  record_and_wait(event);
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, table().cuEventQuery(event.get()));
  end_spoilt(stream);
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventQuery(event.get()));
  end_whole(stream);
}

TEST_F(CaptureInvalid, AThreadInRelaxedModeMayAskAndPinDuringAGlobalCapture) {
  const HostMemory fresh(table(), kMiB * 2, HostMemory::Pinned::kNo);
  const TestStream stream(table());
  const TestEvent event(table());
  record_and_wait(event);
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  const auto ask_and_pin = [&] { // of the thread that captures, and of another
    const ContextScope scope(device());
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << "what a thread begins with";
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventQuery(event.get()));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemHostRegister(fresh.at(), kMiB.size() * 2, 0));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemHostUnregister(fresh.at()));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  };
  ask_and_pin();
  std::thread(ask_and_pin).join();
  end_whole(stream);
}

TEST_F(CaptureInvalid, AThreadInItsOwnModeIsKeptFromItsOwnCaptureOnly) {
  const TestStream stream(table());
  const TestEvent event(table());
  record_and_wait(event);
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  const auto ask = [&](CUresult answer) {
    const ContextScope scope(device());
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_ANSWER(answer, table().cuEventQuery(event.get()));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuThreadExchangeStreamCaptureMode(&mode));
  };
  std::thread(ask, CUDA_SUCCESS).join();
  EXPECT_EQ(status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ask(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  end_spoilt(stream);
}

TEST_F(CaptureInvalid, AnEventOfACaptureIsNoEventForTheHost) {
  const TestStream stream(table());
  const TestEvent event(table());
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventRecord(event.get(), stream.get()));
  EXPECT_ANSWER(CUDA_ERROR_CAPTURED_EVENT, table().cuEventQuery(event.get()));
  end_spoilt(stream);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuEventQuery(event.get())) << "until it is recorded anew";
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventRecord(event.get(), stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
}

TEST_F(CaptureInvalid, TakingMemorySpoilsAGlobalCapture) {
  const TestStream stream(table());
  CUdeviceptr memory = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, table().cuMemAlloc(&memory, kMiB.size()));
  end_spoilt(stream);
}

TEST_F(CaptureInvalid, PinningAndUnpinningSpoilAGlobalCapture) {
  const HostMemory fresh(table(), kMiB * 2, HostMemory::Pinned::kNo);
  const HostMemory pinned(table(), kMiB * 2, HostMemory::Pinned::kYes);
  const TestStream stream(table());
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, table().cuMemHostRegister(fresh.at(), kMiB.size() * 2, 0));
  end_spoilt(stream);
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, table().cuMemHostUnregister(pinned.at()));
  end_spoilt(stream);
}

TEST_F(CaptureInvalid, WorkOnTheLegacyStreamSpoilsTheCaptureOfABlockingStream) {
  const TestStream blocking(table(), CU_STREAM_DEFAULT);
  ASSERT_ANSWER(CUDA_SUCCESS, begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, table().cuStreamSynchronize(nullptr));
  end_spoilt(blocking);
}

TEST_F(CaptureInvalid, TheLegacyStreamTellsOfBlockingStreamsThatCapture) {
  const TestStream blocking(table(), CU_STREAM_DEFAULT);
  const TestStream apart(table());
  CUstreamCaptureStatus legacy = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  ASSERT_ANSWER(CUDA_SUCCESS, begin(apart));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamIsCapturing(nullptr, &legacy));
  EXPECT_EQ(legacy, CU_STREAM_CAPTURE_STATUS_NONE);
  end_whole(apart);
  ASSERT_ANSWER(CUDA_SUCCESS, begin(blocking));
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, table().cuStreamIsCapturing(nullptr, &legacy));
  EXPECT_EQ(status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE) << "asking harms nothing";
  end_whole(blocking);
}

TEST_F(CaptureInvalid, TheLegacyStreamItselfCannotBeCaptured) {
  EXPECT_ANSWER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                table().cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
}

TEST_F(CaptureInvalid, ACaptureBeginsOnceAndEndsOnce) {
  const TestStream stream(table());
  CUgraph graph = nullptr;
  EXPECT_ANSWER(CUDA_ERROR_ILLEGAL_STATE, table().cuStreamEndCapture(stream.get(), &graph));
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_ANSWER(CUDA_ERROR_ILLEGAL_STATE, table().cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_RELAXED));
  end_whole(stream);
}

TEST_F(CaptureInvalid, AForkMustBeJoined) {
  const TestStream main(table());
  const TestStream side(table());
  const TestEvent fork(table());
  CUdeviceptr memory = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAlloc(&memory, kMiB.size()));
  ASSERT_ANSWER(CUDA_SUCCESS, begin(main, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventRecord(fork.get(), main.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamWaitEvent(side.get(), fork.get(), 0));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(memory, 1, kMiB.size(), side.get()));
  end_spoilt(main, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(status(side), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemFree(memory));
}

} // namespace
} // namespace stillwake
