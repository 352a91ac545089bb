// SPDX-License-Identifier: Apache-2.0
// Handles that are none. What was released or destroyed is never handed in: the driver was seen to crash on it.
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

namespace stillwake {
namespace {

constexpr Bytes kTwo = kMiB * 2;

class Handles : public Conformance {};

TEST_F(Handles, PhysicalMemoryIsNamedByDifferentNumbersThatAreNotZero) {
  const Handle one(table(), kTwo);
  const Handle two(table(), kTwo);
  EXPECT_NE(one.get(), 0u);
  EXPECT_NE(one.get(), two.get());
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemRelease(0));
}

TEST_F(Handles, NullHandlesAreRefused) {
  const TestStream stream(table());
  EXPECT_ANSWER(CUDA_ERROR_INVALID_HANDLE, table().cuEventRecord(nullptr, stream.get()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_HANDLE, table().cuEventQuery(nullptr));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_HANDLE, table().cuEventSynchronize(nullptr));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_HANDLE, table().cuStreamWaitEvent(stream.get(), nullptr, 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_HANDLE, table().cuEventDestroy(nullptr));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_HANDLE, table().cuStreamDestroy(nullptr));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuGraphLaunch(nullptr, stream.get()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuGraphDestroy(nullptr));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuGraphExecDestroy(nullptr));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuLaunchHostFunc(stream.get(), nullptr, nullptr));
}

TEST_F(Handles, UnknownFlagsAreRefused) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuStreamCreate(&stream, 0x80));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuEventCreate(&event, 0x80));
}

TEST_F(Handles, DestroyedThingsDoNotLeak) {
  // More than any table of fixed size would take.
  for (int i = 0; i < 3000; ++i) {
    const TestEvent event(table());
    ASSERT_NE(event.get(), nullptr);
  }
  for (int i = 0; i < 100; ++i) {
    const TestStream stream(table());
    ASSERT_NE(stream.get(), nullptr);
  }
}

} // namespace
} // namespace stillwake
