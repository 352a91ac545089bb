// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

#include <vector>

namespace stillwake {
namespace {

class StreamOrder : public Conformance {
protected:
  void SetUp() override {
    Conformance::SetUp();
    ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAlloc(&memory_, kMiB.size()));
  }
  void TearDown() override {
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemFree(memory_));
    Conformance::TearDown();
  }
  CUdeviceptr memory_ = 0;
};

TEST_F(StreamOrder, QueryTellsWhetherWorkIsLeft) {
  const TestStream stream(table());
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamQuery(stream.get()));
  Blocker blocker;
  blocker.hold(table(), stream.get());
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(stream.get()));
  blocker.let_go();
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamQuery(stream.get()));
}

TEST_F(StreamOrder, WorkOfOneStreamRunsInItsOrder) {
  const HostMemory out(table(), kMiB * 4, HostMemory::Pinned::kYes);
  const TestStream stream(table());
  Blocker blocker;
  blocker.hold(table(), stream.get());
  for (unsigned step = 0; step < 4; ++step) {
    const unsigned char value = static_cast<unsigned char>(step + 1);
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(memory_, value, kMiB.size(), stream.get()));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoHAsync(out.at(kMiB * step), memory_, kMiB.size(), stream.get()));
  }
  EXPECT_EQ(*out.at(), 0) << "nothing runs before what came first";
  blocker.let_go();
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream.get()));
  for (unsigned step = 0; step < 4; ++step) {
    EXPECT_EQ(*out.at(kMiB * step), step + 1);
    EXPECT_EQ(*out.at(kMiB * (step + 1) - Bytes(1)), step + 1);
  }
}

TEST_F(StreamOrder, OtherStreamsDoNotWait) {
  const TestStream held(table());
  const TestStream free(table());
  Blocker blocker;
  blocker.hold(table(), held.get());
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(memory_, 3, kMiB.size(), free.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(free.get()));
  EXPECT_ANSWER(CUDA_ERROR_NOT_READY, table().cuStreamQuery(held.get()));
}

struct Note {
  const std::uint8_t* copied;
  int seen = -1;
};

TEST_F(StreamOrder, AHostFunctionSeesWhatCameBeforeItAndHoldsWhatComesAfter) {
  const HostMemory out(table(), kMiB, HostMemory::Pinned::kYes);
  const TestStream stream(table());
  Note note{out.at(kMiB - Bytes(1))};
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(memory_, 8, kMiB.size(), stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoHAsync(out.at(), memory_, kMiB.size(), stream.get()));
  EXPECT_ANSWER(
      CUDA_SUCCESS,
      table().cuLaunchHostFunc(
          stream.get(), [](void* at) { static_cast<Note*>(at)->seen = *static_cast<Note*>(at)->copied; }, &note));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(memory_, 9, kMiB.size(), stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoHAsync(out.at(), memory_, kMiB.size(), stream.get()));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream.get()));
  EXPECT_EQ(note.seen, 8);
  EXPECT_EQ(*out.at(kMiB - Bytes(1)), 9);
}

TEST_F(StreamOrder, AStreamMayBeDestroyedWithWorkLeft) {
  const HostMemory out(table(), kMiB, HostMemory::Pinned::kYes);
  Blocker blocker;
  {
    const TestStream stream(table());
    blocker.hold(table(), stream.get());
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(memory_, 6, kMiB.size(), stream.get()));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoHAsync(out.at(), memory_, kMiB.size(), stream.get()));
  }
  blocker.let_go();
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuCtxSynchronize());
  EXPECT_EQ(*out.at(), 6);
}

TEST_F(StreamOrder, EmptyCopiesAndMemsetsAreFine) {
  const TestStream stream(table());
  std::uint8_t byte = 0;
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoHAsync(&byte, memory_, 0, stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyHtoDAsync(memory_, &byte, 0, stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoDAsync(memory_, memory_, 0, stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(memory_, 0, 0, stream.get()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream.get()));
}

TEST_F(StreamOrder, AStreamKnowsItsContext) {
  const TestStream stream(table());
  CUcontext context = nullptr;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuStreamGetCtx(stream.get(), &context));
  EXPECT_EQ(context, device().context());
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuStreamGetCtx(nullptr, &context));
  EXPECT_EQ(context, device().context());
}

} // namespace
} // namespace stillwake
