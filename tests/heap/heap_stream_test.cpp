// SPDX-License-Identifier: Apache-2.0
// Stream order: whose work must be done before bytes are handed out again, and to whom.
#include "tests/heap/heap_fixture.h"

#include <set>

namespace stillwake {
namespace {

TEST_F(HeapTest, ReuseOnTheSameStreamMakesNoDriverCall) {
  const Stream stream = new_stream();
  StreamGate gate;
  gate.hold(table(), stream); // its work is far from done, and need not be
  for (const Bytes size : {Bytes(700), kMiB, kMiB * 3, kMiB * 20}) {
    std::byte* block = allocate(size, stream);
    const std::uint64_t calls = table().gate.calls();
    for (int round = 0; round < 10; ++round) {
      free(block, stream);
      EXPECT_EQ(allocate(size, stream), block) << size.count();
    }
    EXPECT_EQ(table().gate.calls(), calls) << size.count();
  }
}

TEST_F(HeapTest, AnotherStreamGetsABlockOnlyWhenTheWorkBeforeTheFreeIsDone) {
  for (const Bytes size : {Bytes(4096), kMiB * 4}) { // cached, and free space
    const Stream first = new_stream();
    const Stream second = new_stream();
    std::byte* block = allocate(size, first);
    StreamGate gate;
    gate.hold(table(), first);
    set(block, 1, size, first);
    free(block, first);

    std::vector<std::byte*> others;
    for (int index = 0; index < 3; ++index) {
      others.push_back(allocate(size, second));
      set(others.back(), 2, size, second);
    }
    synchronize(second);
    gate.open();
    synchronize(first);
    for (std::byte* other : others) {
      EXPECT_TRUE(all_are(other, 2, size));
    }
    // Now it is safe for everybody, and found before the heap grows again.
    const std::size_t growths = source->calls.size();
    bool again = false;
    for (int index = 0; index < 2000 && !again && source->calls.size() == growths; ++index) {
      again = allocate(size, second) == block;
    }
    EXPECT_TRUE(again);
  }
}

TEST_F(HeapTest, FreeFromAnUnknownStreamWaitsForAllWorkSoFar) {
  const Stream own = new_stream();
  const Stream other = new_stream();
  std::byte* block = allocate(kMiB * 2, own);
  StreamGate gate;
  gate.hold(table(), other);
  set(block, 1, kMiB * 2, other);
  free(block, std::nullopt);
  EXPECT_EQ(heap->stats().parked, kMiB * 2);
  std::byte* next = allocate(kMiB * 2, own); // not even its own stream
  EXPECT_NE(next, block);
  gate.open();
  synchronize(other);
  ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  const std::size_t growths = source->calls.size();
  bool again = false;
  while (!again && source->calls.size() == growths) {
    again = allocate(kMiB * 2, own) == block;
  }
  EXPECT_TRUE(again);
  EXPECT_EQ(heap->stats().parked, Bytes(0));
}

// FR-A3: 200 times allocate, launch, free at once, from another and from an unknown stream; an unrelated stream is held
// up all the while, and nothing waits for it.
TEST_F(HeapTest, FrA3FreeAtOnceAfterALaunch) {
  const Stream owner = new_stream();
  const Stream worker = new_stream();
  const Stream unrelated = new_stream();
  StreamGate gate;
  gate.hold(table(), unrelated);
  driver->emulation()->set_stream_delay(std::chrono::microseconds(200));
  const Bytes size = kMiB;
  for (int round = 0; round < 200; ++round) {
    std::byte* block = allocate(size, owner);
    set(block, round, size, worker);
    if (round % 10 == 0) {
      free(block, std::nullopt);
    } else {
      free(block, worker);
    }
    // Whoever gets memory now must not be written by the launch before.
    std::byte* next = allocate(size, owner);
    set(next, 255, size, owner);
    synchronize(owner);
    synchronize(worker);
    ASSERT_TRUE(all_are(next, 255, size)) << round;
    free(next, owner);
  }
  heap->check_invariants();
  driver->emulation()->set_stream_delay(Duration(0));
  // The 20 freed from nowhere wait for the stream that never moved. Of the other 180 MiB each was used again soon.
  EXPECT_LE(Bytes(source->backed()), kMiB * 64);
  gate.open();
}

TEST_F(HeapTest, AFreeFromANamedStreamDoesNotWaitForUnrelatedWork) {
  const Stream owner = new_stream();
  const Stream worker = new_stream();
  const Stream unrelated = new_stream();
  StreamGate gate;
  gate.hold(table(), unrelated);
  std::byte* block = allocate(kMiB * 2, owner);
  free(block, worker);
  EXPECT_EQ(heap->stats().parked, kMiB * 2);
  synchronize(worker);
  EXPECT_EQ(allocate(kMiB * 2, owner), block);
}

TEST_F(HeapTest, OutOfMemoryMakesTheStreamWaitNotTheHost) {
  for (const bool known : {true, false}) {
    const Stream first = new_stream();
    const Stream second = new_stream();
    std::byte* block = allocate(kMiB * 8, first);
    StreamGate gate;
    gate.hold(table(), first);
    set(block, 1, kMiB * 8, first);
    free(block, known ? std::optional(first) : std::nullopt);
    source->fail = true;
    std::byte* again = allocate(kMiB * 8, second); // returns while `first` is held up
    EXPECT_EQ(again, block);
    set(again, 2, kMiB * 8, second);
    EXPECT_EQ(table().cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    gate.open();
    synchronize(second);
    EXPECT_TRUE(all_are(again, 2, kMiB * 8));
    source->fail = false;
    free(again, second);
    ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  }
}

TEST_F(HeapTest, NothingOfTheWholeContextIsRecordedWhileACaptureRuns) {
  const Stream owner = new_stream();
  const Stream worker = new_stream();
  const Stream captured = new_stream();
  std::byte* crossed = allocate(kMiB * 2, owner);
  std::byte* unknown = allocate(kMiB * 2, owner);
  source->a_capture_runs_now = true;
  ASSERT_EQ(table().cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  const std::uint64_t before = table().gate.calls(CallId::cuCtxRecordEvent);
  free(crossed, worker);
  free(unknown, std::nullopt);
  EXPECT_NE(allocate(kMiB * 2, owner), unknown) << "nobody knows yet when that one is safe";
  free(allocate(kMiB * 2, worker), worker); // carries out what others left
  EXPECT_EQ(table().gate.calls(CallId::cuCtxRecordEvent), before);
  CUgraph graph = nullptr;
  EXPECT_EQ(table().cuStreamEndCapture(captured, &graph), CUDA_SUCCESS) << "the capture is whole";
  EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
  source->a_capture_runs_now = false;
  ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  std::set<std::byte*> reused; // what nobody used comes first, then an event is recorded, then it is over
  for (int i = 0; i < 40 && reused.count(unknown) + reused.count(crossed) < 2; ++i) {
    reused.insert(allocate(kMiB * 2, owner));
    ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  EXPECT_EQ(table().gate.calls(CallId::cuCtxRecordEvent), before + 1) << "for both, once the capture is over";
  EXPECT_EQ(reused.count(unknown), 1u);
  EXPECT_EQ(reused.count(crossed), 1u);
}

TEST_F(HeapTest, AStreamMayBeDestroyedOnceItsWorkIsDone) {
  const Stream owner = new_stream();
  auto gone = OwnedStream::create(*device).value();
  std::byte* block = allocate(kMiB * 2, gone.get());
  std::byte* crossed = allocate(kMiB * 2, owner);
  set(block, 1, kMiB * 2, gone.get());
  free(block, gone.get());
  free(crossed, gone.get());
  ASSERT_TRUE(gone.synchronize());
  gone = OwnedStream();
  const std::uint64_t failures = table().gate.failures(CallId::cuEventRecord);
  std::vector<std::byte*> blocks;
  for (int index = 0; index < 6; ++index) {
    blocks.push_back(allocate(kMiB * 2, owner));
    ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  EXPECT_NE(std::find(blocks.begin(), blocks.end(), block), blocks.end());
  EXPECT_NE(std::find(blocks.begin(), blocks.end(), crossed), blocks.end());
  EXPECT_EQ(table().gate.failures(CallId::cuEventRecord), failures);
}

TEST_F(HeapTest, EventsAreBoundedHoweverManyFreesWait) {
  const Stream owner = new_stream();
  const Stream worker = new_stream();
  StreamGate gate;
  gate.hold(table(), worker);
  std::vector<std::byte*> blocks;
  for (int index = 0; index < 1000; ++index) {
    blocks.push_back(allocate(Bytes(8192), owner));
  }
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    free(blocks[index], index % 2 == 0 ? std::optional(worker) : std::nullopt);
  }
  EXPECT_EQ(heap->stats().parked, Bytes(8192 * 1000));
  EXPECT_LE(driver->emulation()->live_events(), 130u);
  gate.open();
  ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  heap->check_invariants();
  const std::size_t growths = source->calls.size();
  allocate(kMiB * 6, owner); // the first look records for those that had to wait
  ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  allocate(kMiB * 7, owner);
  EXPECT_LE(source->calls.size(), growths + 1);
}

TEST_F(HeapTest, AFailingEventMeansWaitingLongerNotFailing) {
  const Stream owner = new_stream();
  const Stream worker = new_stream();
  std::byte* block = allocate(kMiB * 2, owner);
  std::vector<Fault> faults;
  for (const CallId call : {CallId::cuEventCreate, CallId::cuEventRecord, CallId::cuCtxRecordEvent}) {
    faults.push_back({call, 1, CUDA_ERROR_UNKNOWN, true});
  }
  table().gate.arm(faults);
  free(block, worker);
  EXPECT_EQ(heap->stats().parked, kMiB * 2);
  EXPECT_NE(allocate(kMiB * 2, owner), block);
  table().gate.arm({});
  allocate(kMiB * 2, owner);
  ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  const std::size_t growths = source->calls.size();
  bool again = false;
  while (!again && source->calls.size() == growths) {
    again = allocate(kMiB * 2, owner) == block;
  }
  EXPECT_TRUE(again);
}

} // namespace
} // namespace stillwake
