// SPDX-License-Identifier: Apache-2.0
// Two devices: access of one to the other's pages, and what belongs to one context and not to the other.
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

namespace stillwake {
namespace {

constexpr Bytes kTwo = kMiB * 2;

class Peers : public Conformance {
protected:
  void SetUp() override {
    Conformance::SetUp();
    if (driver().device_count() < 2) {
      GTEST_SKIP() << "there is one device";
    }
    const Result<Device*> other = driver().device(DeviceIndex(1));
    ASSERT_TRUE(other) << other.error().describe();
    other_ = *other;
  }
  Device* other_ = nullptr;
};

TEST_F(Peers, APeerReadsAndWritesPagesItWasGivenAccessTo) {
  int can = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuDeviceCanAccessPeer(&can, 1, 0));
  if (can == 0) {
    GTEST_SKIP() << "device 1 cannot reach device 0";
  }
  const Range range(table(), kTwo);
  const Handle handle(table(), kTwo);
  const Placed placed(table(), range.at(), handle, kTwo);
  const CUmemAccessDesc both[] = {access_of(0), access_of(1)};
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemSetAccess(range.at(), kTwo.size(), both, 2));
  const TestStream mine(table());
  {
    const ContextScope scope(*other_);
    ASSERT_TRUE(scope.entered());
    const TestStream theirs(table());
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(range.at(), 81, kTwo.size(), theirs.get()));
    EXPECT_EQ(value_at(table(), range.at(), kTwo, theirs.get()), 81);
  }
  EXPECT_EQ(value_at(table(), range.at(), kTwo, mine.get()), 81);
}

TEST_F(Peers, AnEventIsRecordedOnStreamsOfItsOwnContextAndAwaitedOnAny) {
  const TestStream mine(table());
  const TestEvent event(table());
  const ContextScope scope(*other_);
  ASSERT_TRUE(scope.entered());
  const TestStream theirs(table());
  EXPECT_ANSWER(CUDA_ERROR_INVALID_HANDLE, table().cuEventRecord(event.get(), theirs.get()));
  Blocker blocker;
  blocker.hold(table(), mine.get());
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuEventRecord(event.get(), mine.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamWaitEvent(theirs.get(), event.get(), 0));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(theirs.get()));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(theirs.get()));
}

TEST_F(Peers, DevicesHaveMemoryOfTheirOwn) {
  const Handle here(table(), kMiB * 128, 0);
  const Bytes mine = free_bytes(table());
  const ContextScope scope(*other_);
  ASSERT_TRUE(scope.entered());
  const Bytes before = free_bytes(table());
  const Handle there(table(), kMiB * 128, 1);
  EXPECT_LE(free_bytes(table()), before - kMiB * 128 + kMiB * 16);
  const ContextScope back(device());
  EXPECT_GE(free_bytes(table()) + kMiB * 16, mine);
}

} // namespace
} // namespace stillwake
