// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

#include <thread>

namespace stillwake {
namespace {

class Contexts : public Conformance {
protected:
  CUcontext current() {
    CUcontext context = nullptr;
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuCtxGetCurrent(&context));
    return context;
  }
};

TEST_F(Contexts, PushAndPopNest) {
  CUcontext popped = nullptr;
  EXPECT_EQ(current(), device().context());
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuCtxPushCurrent(device().context()));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, device().context());
  EXPECT_EQ(current(), device().context());
}

TEST_F(Contexts, WithoutAContextNothingOfItWorks) {
  std::thread([&] { // a thread starts with none
    EXPECT_EQ(current(), nullptr);
    CUcontext popped = nullptr;
    CUdeviceptr memory = 0;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_ANSWER(CUDA_ERROR_INVALID_CONTEXT, table().cuCtxPopCurrent(&popped));
    EXPECT_ANSWER(CUDA_ERROR_INVALID_CONTEXT, table().cuMemAlloc(&memory, 4096));
    EXPECT_ANSWER(CUDA_ERROR_INVALID_CONTEXT, table().cuMemGetInfo(&free, &total));
    EXPECT_ANSWER(CUDA_ERROR_INVALID_CONTEXT, table().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT_ANSWER(CUDA_ERROR_INVALID_CONTEXT, table().cuEventCreate(&event, CU_EVENT_DEFAULT));
    EXPECT_ANSWER(CUDA_ERROR_INVALID_CONTEXT, table().cuCtxSynchronize());
    const HostMemory host(table(), kMiB * 2, HostMemory::Pinned::kNo);
    EXPECT_ANSWER(CUDA_ERROR_INVALID_CONTEXT, table().cuMemHostRegister(host.at(), kMiB.size(), 0));
  })
      .join();
}

TEST_F(Contexts, EachThreadHasItsOwnCurrentContext) {
  std::thread([&] {
    CUcontext popped = nullptr;
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuCtxPushCurrent(device().context()));
    EXPECT_EQ(current(), device().context());
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuCtxPopCurrent(&popped));
    EXPECT_EQ(current(), nullptr);
  }).join();
  EXPECT_EQ(current(), device().context());
}

TEST_F(Contexts, ThePrimaryContextIsOneHoweverOftenRetained) {
  CUcontext again = nullptr;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuDevicePrimaryCtxRetain(&again, device().handle()));
  EXPECT_EQ(again, device().context());
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuDevicePrimaryCtxRelease(device().handle()));
  const TestStream still_there(table());
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(still_there.get()));
}

TEST_F(Contexts, SynchronizeWaitsForEveryStream) {
  const TestStream one(table());
  const TestStream two(table(), CU_STREAM_DEFAULT);
  Blocker blocker;
  blocker.hold(table(), one.get());
  std::thread opener([&] { blocker.let_go(); });
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuCtxSynchronize());
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamQuery(one.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamQuery(two.get()));
  opener.join();
}

} // namespace
} // namespace stillwake
