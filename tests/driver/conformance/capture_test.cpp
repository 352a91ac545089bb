// SPDX-License-Identifier: Apache-2.0
// Capturing work and replaying it.
#include "tests/driver/conformance/capture.h"
#include "tests/driver/conformance/pieces.h"

#include <optional>

namespace stillwake {
namespace {

constexpr Bytes kTwo = kMiB * 2;

class Capture : public Conformance {
protected:
  CUresult begin(const TestStream& stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) {
    return table().cuStreamBeginCapture(stream.get(), mode);
  }
  CUstreamCaptureStatus status(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamIsCapturing(stream, &status));
    return status;
  }
  CUresult fill(CUdeviceptr at, unsigned char value, Bytes size, const TestStream& stream) {
    return table().cuMemsetD8Async(at, value, size.size(), stream.get());
  }
};

TEST_F(Capture, CapturedWorkRunsWhenLaunchedAndNotBefore) {
  const Range range(table(), kTwo);
  const Handle handle(table(), kTwo);
  const Placed placed(table(), range.at(), handle, kTwo);
  const HostMemory out(table(), kTwo, HostMemory::Pinned::kYes);
  const TestStream stream(table());
  EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 1, kTwo, stream));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream.get()));

  EXPECT_EQ(status(stream.get()), CU_STREAM_CAPTURE_STATUS_NONE);
  ASSERT_ANSWER(CUDA_SUCCESS, begin(stream));
  EXPECT_EQ(status(stream.get()), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 2, kTwo, stream));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoHAsync(out.at(), range.at(), kTwo.size(), stream.get()));
  CapturedGraph graph(table(), stream.get());
  EXPECT_EQ(status(stream.get()), CU_STREAM_CAPTURE_STATUS_NONE);

  EXPECT_EQ(value_at(table(), range.at(), kTwo, stream.get()), 1) << "captured, not run";
  EXPECT_EQ(*out.at(), 0);
  for (int launch = 0; launch < 2; ++launch) {
    EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 7, kTwo, stream));
    *out.at(kTwo - Bytes(1)) = 0;
    graph.launch(stream.get());
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream.get()));
    EXPECT_EQ(*out.at(kTwo - Bytes(1)), 2);
    EXPECT_EQ(value_at(table(), range.at(), kTwo, stream.get()), 2);
  }
}

TEST_F(Capture, ALaunchKeepsTheOrderOfItsStream) {
  const Range range(table(), kTwo);
  const Handle handle(table(), kTwo);
  const Placed placed(table(), range.at(), handle, kTwo);
  const TestStream recorded(table());
  const TestStream stream(table());
  ASSERT_ANSWER(CUDA_SUCCESS, begin(recorded));
  EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 3, kMiB, recorded));
  CapturedGraph graph(table(), recorded.get());
  Blocker blocker;
  blocker.hold(table(), stream.get());
  EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 2, kTwo, stream));
  graph.launch(stream.get());
  EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 4, Bytes(4096), stream));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(stream.get()));
  blocker.let_go();
  EXPECT_EQ(value_at(table(), range.at(), Bytes(4096), stream.get()), 4);
  EXPECT_EQ(value_at(table(), range.at(Bytes(4096)), kMiB - Bytes(4096), stream.get()), 3);
  EXPECT_EQ(value_at(table(), range.at(kMiB), kMiB, stream.get()), 2);
}

TEST_F(Capture, AGraphReplaysAtAddressesWhosePagesWereReplaced) {
  const Range range(table(), kTwo * 2);
  const TestStream stream(table());
  std::optional<CapturedGraph> graph;
  {
    const Handle handle(table(), kTwo * 2);
    const Placed placed(table(), range.at(), handle, kTwo * 2);
    ASSERT_ANSWER(CUDA_SUCCESS, begin(stream));
    EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 61, kTwo, stream));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoDAsync(range.at(kTwo), range.at(), kTwo.size(), stream.get()));
    graph.emplace(table(), stream.get());
  }
  for (int cycle = 0; cycle < 3; ++cycle) { // each time other handles, and cut otherwise than when it was captured
    const Handle one(table(), kTwo);
    const Handle two(table(), kTwo);
    const Placed first(table(), range.at(), one, kTwo);
    const Placed second(table(), range.at(kTwo), two, kTwo);
    EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 9, kTwo * 2, stream));
    graph->launch(stream.get());
    EXPECT_EQ(value_at(table(), range.at(), kTwo * 2, stream.get()), 61);
  }
}

TEST_F(Capture, AnEventCarriesACaptureToAnotherStreamAndBack) {
  const Range range(table(), kTwo * 2);
  const Handle handle(table(), kTwo * 2);
  const Placed placed(table(), range.at(), handle, kTwo * 2);
  const TestStream main(table());
  const TestStream side(table());
  const TestEvent fork(table());
  const TestEvent join(table());
  EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 1, kTwo * 2, main));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(main.get()));
  ASSERT_ANSWER(CUDA_SUCCESS, begin(main));
  EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 71, kTwo, main));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventRecord(fork.get(), main.get()));
  EXPECT_EQ(status(side.get()), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamWaitEvent(side.get(), fork.get(), 0));
  EXPECT_EQ(status(side.get()), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoDAsync(range.at(kTwo), range.at(), kTwo.size(), side.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventRecord(join.get(), side.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamWaitEvent(main.get(), join.get(), 0));
  EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 72, kMiB, main));
  CapturedGraph graph(table(), main.get());
  EXPECT_EQ(status(side.get()), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(value_at(table(), range.at(), kTwo * 2, main.get()), 1);
  graph.launch(main.get());
  EXPECT_EQ(value_at(table(), range.at(kTwo), kTwo, main.get()), 71);
  EXPECT_EQ(value_at(table(), range.at(kMiB), kMiB, main.get()), 71);
  EXPECT_EQ(value_at(table(), range.at(), kMiB, main.get()), 72);
}

TEST_F(Capture, OtherStreamsWorkOnWhileOneCaptures) {
  const Range range(table(), kTwo);
  const Handle handle(table(), kTwo);
  const Placed placed(table(), range.at(), handle, kTwo);
  const TestStream capturing(table());
  const TestStream other(table());
  const TestEvent event(table());
  ASSERT_ANSWER(CUDA_SUCCESS, begin(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_ANSWER(CUDA_SUCCESS, fill(range.at(), 5, kTwo, other));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventRecord(event.get(), other.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventQuery(event.get()));
  EXPECT_EQ(status(other.get()), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(status(capturing.get()), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(value_at(table(), range.at(), kTwo, other.get()), 5);
  const CapturedGraph empty(table(), capturing.get());
}

TEST_F(Capture, TheVirtualMemoryCallsDisturbNoCapture) {
  for (const CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const TestStream capturing(table());
    ASSERT_ANSWER(CUDA_SUCCESS, begin(capturing, mode));
    {
      const Range range(table(), kTwo);
      const Handle handle(table(), kTwo);
      const Placed placed(table(), range.at(), handle, kTwo);
    }
    EXPECT_EQ(status(capturing.get()), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    const CapturedGraph empty(table(), capturing.get());
  }
}

} // namespace
} // namespace stillwake
