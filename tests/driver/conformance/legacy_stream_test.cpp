// SPDX-License-Identifier: Apache-2.0
// The legacy default stream (null) waits for the streams that were not made non-blocking, and they for it.
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

namespace stillwake {
namespace {

class LegacyStream : public Conformance {
protected:
  void SetUp() override {
    Conformance::SetUp();
    ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAlloc(&memory_, kMiB.size()));
  }
  void TearDown() override {
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemFree(memory_));
    Conformance::TearDown();
  }
  /// Queues some work and an event behind it.
  void work(CUstream stream, const TestEvent& event) {
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(memory_, 1, kMiB.size(), stream));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventRecord(event.get(), stream));
  }
  CUdeviceptr memory_ = 0;
};

TEST_F(LegacyStream, WaitsForBlockingStreams) {
  const TestStream blocking(table(), CU_STREAM_DEFAULT);
  const TestEvent event(table());
  Blocker blocker;
  blocker.hold(table(), blocking.get());
  work(nullptr, event);
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuEventQuery(event.get()));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(nullptr));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
}

TEST_F(LegacyStream, DoesNotWaitForNonBlockingStreams) {
  const TestStream apart(table());
  const TestEvent event(table());
  Blocker blocker;
  blocker.hold(table(), apart.get());
  work(nullptr, event);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(apart.get()));
}

TEST_F(LegacyStream, HoldsBlockingStreamsAndNoOthers) {
  const TestStream blocking(table(), CU_STREAM_DEFAULT);
  const TestStream apart(table());
  const TestEvent held(table());
  const TestEvent free(table());
  Blocker blocker;
  blocker.hold(table(), nullptr);
  work(blocking.get(), held);
  work(apart.get(), free);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(free.get()));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuEventQuery(held.get()));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(held.get()));
}

TEST_F(LegacyStream, HasASecondName) {
  const TestEvent event(table());
  Blocker blocker;
  blocker.hold(table(), nullptr);
  work(CU_STREAM_LEGACY, event);
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuEventQuery(event.get()));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(CU_STREAM_LEGACY));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventQuery(event.get()));
}

} // namespace
} // namespace stillwake
