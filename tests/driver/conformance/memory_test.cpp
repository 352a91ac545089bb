// SPDX-License-Identifier: Apache-2.0
// Ordinary device memory: cuMemAlloc, and the moves between it and virtual memory.
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

namespace stillwake {
namespace {

constexpr Bytes kTwo = kMiB * 2;

class OrdinaryMemory : public Conformance {};

TEST_F(OrdinaryMemory, IsAlignedAndLiesApart) {
  CUdeviceptr one = 0;
  CUdeviceptr two = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAlloc(&one, 1));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAlloc(&two, 1000));
  EXPECT_EQ(one % 256, 0u);
  EXPECT_EQ(two % 256, 0u);
  EXPECT_NE(one, two);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemFree(one));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemFree(two));
}

TEST_F(OrdinaryMemory, NothingTooMuchAndForeignAddressesAreRefused) {
  CUdeviceptr memory = 0;
  std::size_t total = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuDeviceTotalMem(&total, 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAlloc(&memory, 0));
  EXPECT_ANSWER(CUDA_ERROR_OUT_OF_MEMORY, table().cuMemAlloc(&memory, total + kGiB.size()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemFree(0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemFree(0x1000));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAlloc(&memory, kTwo.size()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemFree(memory + 256));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemFree(memory));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemFree(memory));
}

TEST_F(OrdinaryMemory, VirtualMemoryIsNotFreedAsOrdinary) {
  const Range range(table(), kTwo);
  const Handle handle(table(), kTwo);
  const Placed placed(table(), range.at(), handle, kTwo);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemFree(range.at()));
}

TEST_F(OrdinaryMemory, CopiesMoveBetweenBothKinds) {
  const Range range(table(), kTwo);
  const Handle handle(table(), kTwo);
  const Placed placed(table(), range.at(), handle, kTwo);
  const TestStream stream(table());
  CUdeviceptr memory = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAlloc(&memory, kTwo.size()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(memory, 0xa5, kTwo.size(), stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoDAsync(range.at(), memory, kTwo.size(), stream.get()));
  EXPECT_EQ(value_at(table(), range.at(), kTwo, stream.get()), 0xa5);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(range.at(), 0x5a, kMiB.size(), stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoDAsync(memory, range.at(), kTwo.size(), stream.get()));
  EXPECT_EQ(value_at(table(), memory, kMiB, stream.get()), 0x5a);
  EXPECT_EQ(value_at(table(), memory + kMiB.count(), kMiB, stream.get()), 0xa5);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemFree(memory));
}

} // namespace
} // namespace stillwake
