// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

namespace stillwake {
namespace {

class Events : public Conformance {
protected:
  CUresult record(const TestEvent& event, const TestStream& stream) {
    return table().cuEventRecord(event.get(), stream.get());
  }
  CUresult wait(const TestStream& stream, const TestEvent& event) {
    return table().cuStreamWaitEvent(stream.get(), event.get(), 0);
  }
};

TEST_F(Events, AnEventThatWasNeverRecordedIsDone) {
  const TestEvent event(table());
  const TestStream stream(table());
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventQuery(event.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, wait(stream, event));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream.get()));
}

TEST_F(Events, AnEventIsDoneWhenTheWorkBeforeItIs) {
  const TestEvent event(table());
  const TestStream stream(table());
  Blocker blocker;
  blocker.hold(table(), stream.get());
  EXPECT_ANSWER(CUDA_SUCCESS, record(event, stream));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuEventQuery(event.get()));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventQuery(event.get()));
}

TEST_F(Events, WorkAfterAnEventDoesNotHoldIt) {
  const TestEvent event(table());
  const TestStream stream(table());
  EXPECT_ANSWER(CUDA_SUCCESS, record(event, stream));
  Blocker blocker;
  blocker.hold(table(), stream.get());
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(stream.get()));
}

TEST_F(Events, AStreamWaitsForAnotherThroughAnEvent) {
  const TestEvent event(table());
  const TestStream first(table());
  const TestStream second(table());
  Blocker blocker;
  blocker.hold(table(), first.get());
  EXPECT_ANSWER(CUDA_SUCCESS, record(event, first));
  EXPECT_ANSWER(CUDA_SUCCESS, wait(second, event));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(second.get()));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(second.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamQuery(first.get()));
}

TEST_F(Events, AWaitIsForTheLastRecordBeforeIt) {
  const TestEvent event(table());
  const TestStream held(table());
  const TestStream idle(table());
  const TestStream early(table());
  const TestStream late(table());
  Blocker blocker;
  blocker.hold(table(), held.get());
  EXPECT_ANSWER(CUDA_SUCCESS, record(event, held));
  EXPECT_ANSWER(CUDA_SUCCESS, wait(early, event));
  EXPECT_ANSWER(CUDA_SUCCESS, record(event, idle)); // replaces what the event stands for, not what `early` waits for
  EXPECT_ANSWER(CUDA_SUCCESS, wait(late, event));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(late.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(early.get()));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(early.get()));
}

TEST_F(Events, AnEventMayBeDestroyedWhileAStreamWaitsForIt) {
  const TestStream first(table());
  const TestStream second(table());
  Blocker blocker;
  {
    const TestEvent event(table());
    blocker.hold(table(), first.get());
    EXPECT_ANSWER(CUDA_SUCCESS, record(event, first));
    EXPECT_ANSWER(CUDA_SUCCESS, wait(second, event));
  }
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(second.get()));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(second.get()));
}

TEST_F(Events, AContextEventCoversAllStreamsOfTheContext) {
  if (!table().cuCtxRecordEvent) {
    GTEST_SKIP() << "this driver has no events on a context";
  }
  const TestEvent event(table());
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    const TestStream held(table(), flags);
    Blocker blocker;
    blocker.hold(table(), held.get());
    ASSERT_ANSWER(CUDA_SUCCESS, table().cuCtxRecordEvent(device().context(), event.get()));
    EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuEventQuery(event.get()));
    blocker.let_go();
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventSynchronize(event.get()));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamQuery(held.get()));
  }
}

TEST_F(Events, ElapsedTimeNeedsTwoTimedEventsThatAreDone) {
  const TestEvent start(table(), CU_EVENT_DEFAULT);
  const TestEvent end(table(), CU_EVENT_DEFAULT);
  const TestEvent untimed(table());
  const TestStream stream(table());
  float milliseconds = -1;
  EXPECT_ANSWER(CUDA_ERROR_INVALID_HANDLE, table().cuEventElapsedTime(&milliseconds, start.get(), end.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, record(start, stream));
  Blocker blocker;
  blocker.hold(table(), stream.get());
  EXPECT_ANSWER(CUDA_SUCCESS, record(end, stream));
  EXPECT_ANSWER(CUDA_SUCCESS, record(untimed, stream));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuEventElapsedTime(&milliseconds, start.get(), end.get()));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventElapsedTime(&milliseconds, start.get(), end.get()));
  EXPECT_GE(milliseconds, 0.0f);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_HANDLE, table().cuEventElapsedTime(&milliseconds, start.get(), untimed.get()));
}

} // namespace
} // namespace stillwake
