// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

#include <algorithm>

namespace stillwake {
namespace {

constexpr Bytes kTwo = kMiB * 2;

class HostRegistration : public Conformance {
protected:
  void SetUp() override {
    Conformance::SetUp();
    ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAlloc(&on_device_, kMiB.size() * 4));
    ASSERT_ANSWER(CUDA_SUCCESS, table().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }
  void TearDown() override {
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamDestroy(stream_));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemFree(on_device_));
    Conformance::TearDown();
  }
  CUresult pin(const HostMemory& memory, Bytes at, Bytes size) {
    return table().cuMemHostRegister(memory.at(at), size.size(), CU_MEMHOSTREGISTER_PORTABLE);
  }
  CUresult unpin(const HostMemory& memory, Bytes at) { return table().cuMemHostUnregister(memory.at(at)); }
  CUresult copy_out(void* to, Bytes size) { return table().cuMemcpyDtoHAsync(to, on_device_, size.size(), stream_); }
  CUresult copy_in(const void* from, Bytes size) {
    return table().cuMemcpyHtoDAsync(on_device_, from, size.size(), stream_);
  }

  CUdeviceptr on_device_ = 0;
  CUstream stream_ = nullptr;
};

TEST_F(HostRegistration, NothingAndNowhereAreRefused) {
  const HostMemory memory(table(), kTwo, HostMemory::Pinned::kNo);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, pin(memory, Bytes(0), Bytes(0)));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemHostRegister(nullptr, kTwo.size(), 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemHostUnregister(nullptr));
}

TEST_F(HostRegistration, TwiceIsRefusedAlsoWhereOnlyAPartOverlaps) {
  const HostMemory memory(table(), kTwo * 2, HostMemory::Pinned::kNo);
  ASSERT_ANSWER(CUDA_SUCCESS, pin(memory, Bytes(0), kTwo));
  EXPECT_ANSWER(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, pin(memory, Bytes(0), kTwo));
  EXPECT_ANSWER(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, pin(memory, kMiB, kTwo));
  EXPECT_ANSWER(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, pin(memory, kMiB, Bytes(4096)));
  EXPECT_ANSWER(CUDA_SUCCESS, unpin(memory, Bytes(0)));
  EXPECT_ANSWER(CUDA_SUCCESS, pin(memory, Bytes(0), kTwo * 2));
  EXPECT_ANSWER(CUDA_SUCCESS, unpin(memory, Bytes(0)));
}

TEST_F(HostRegistration, UnregisteringWhatIsNotRegisteredIsRefused) {
  const HostMemory memory(table(), kTwo, HostMemory::Pinned::kNo);
  EXPECT_ANSWER(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, unpin(memory, Bytes(0)));
  ASSERT_ANSWER(CUDA_SUCCESS, pin(memory, Bytes(0), kTwo));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, unpin(memory, kMiB)); // inside, not the start
  EXPECT_ANSWER(CUDA_SUCCESS, unpin(memory, Bytes(0)));
  EXPECT_ANSWER(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, unpin(memory, Bytes(0)));
}

TEST_F(HostRegistration, OneCopyMayNotSpanTwoRegistrations) {
  const HostMemory memory(table(), kTwo * 2, HostMemory::Pinned::kNo);
  ASSERT_ANSWER(CUDA_SUCCESS, pin(memory, Bytes(0), kTwo));
  ASSERT_ANSWER(CUDA_SUCCESS, pin(memory, kTwo, kTwo));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, copy_out(memory.at(kMiB), kTwo));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, copy_in(memory.at(kMiB), kTwo));
  EXPECT_ANSWER(CUDA_SUCCESS, copy_out(memory.at(kMiB), kMiB)) << "up to the edge";
  EXPECT_ANSWER(CUDA_SUCCESS, copy_out(memory.at(kTwo), kTwo)) << "from the edge on";
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream_));
  EXPECT_ANSWER(CUDA_SUCCESS, unpin(memory, Bytes(0)));
  EXPECT_ANSWER(CUDA_SUCCESS, unpin(memory, kTwo));
  ASSERT_ANSWER(CUDA_SUCCESS, pin(memory, Bytes(0), kTwo * 2));
  EXPECT_ANSWER(CUDA_SUCCESS, copy_out(memory.at(kMiB), kTwo)) << "pinned anew as one piece";
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream_));
  EXPECT_ANSWER(CUDA_SUCCESS, unpin(memory, Bytes(0)));
}

TEST_F(HostRegistration, PartsOfARegistrationTravelBothWays) {
  const HostMemory memory(table(), kTwo, HostMemory::Pinned::kYes);
  for (std::size_t i = 0; i < 5000; ++i) {
    memory.at()[4099 + i] = static_cast<std::uint8_t>(i * 7);
  }
  ASSERT_ANSWER(CUDA_SUCCESS, copy_in(memory.at(Bytes(4099)), Bytes(5000)));
  ASSERT_ANSWER(CUDA_SUCCESS, copy_out(memory.at(kMiB + Bytes(1)), Bytes(5000)));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream_));
  EXPECT_TRUE(std::equal(memory.at(Bytes(4099)), memory.at(Bytes(4099 + 5000)), memory.at(kMiB + Bytes(1))));
}

TEST_F(HostRegistration, MemoryThatIsNotPinnedTravelsToo) {
  const HostMemory memory(table(), kTwo * 2, HostMemory::Pinned::kNo);
  std::fill_n(memory.at(), kTwo.size(), std::uint8_t{0x5a});
  ASSERT_ANSWER(CUDA_SUCCESS, copy_in(memory.at(), kTwo));
  ASSERT_ANSWER(CUDA_SUCCESS, copy_out(memory.at(kTwo), kTwo));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream_));
  EXPECT_TRUE(std::equal(memory.at(), memory.at(kTwo), memory.at(kTwo)));
}

} // namespace
} // namespace stillwake
