// SPDX-License-Identifier: Apache-2.0
// What kills a context. Each case runs in a program started anew and leaves by _exit: 0 says that it met the error.
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

#include <cstdio>
#include <unistd.h>

namespace stillwake {
namespace {

constexpr Bytes kTwo = kMiB * 2;

class FatalDeathTest : public Conformance {
protected:
  /// Ends the program: the write must kill the context, and every later use must say so.
  [[noreturn]] void expect_dead(CUresult queued) {
    const CUresult met = queued == CUDA_SUCCESS ? table().cuCtxSynchronize() : queued;
    const CUresult again = table().cuCtxSynchronize();
    CUstream stream = nullptr;
    const CUresult create = table().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    std::fprintf(stderr, "queued %s, met %s, again %s, create %s\n", named(queued).c_str(), named(met).c_str(),
                 named(again).c_str(), named(create).c_str());
    _exit(met == CUDA_ERROR_ILLEGAL_ADDRESS && again == met && create == met ? 0 : 1);
  }
};

TEST_F(FatalDeathTest, WritingUnmappedAddressesKillsTheContext) {
  EXPECT_EXIT(
      {
        const Range range(table(), kTwo);
        const TestStream stream(table());
        expect_dead(table().cuMemsetD8Async(range.at(), 1, kTwo.size(), stream.get()));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FatalDeathTest, CopyingFromUnmappedAddressesKillsTheContext) {
  EXPECT_EXIT(
      {
        const Range range(table(), kTwo);
        const TestStream stream(table());
        const HostMemory out(table(), kTwo, HostMemory::Pinned::kYes);
        expect_dead(table().cuMemcpyDtoHAsync(out.at(), range.at(), kTwo.size(), stream.get()));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FatalDeathTest, AFreshMappingHasNoAccess) {
  EXPECT_EXIT(
      {
        const Range range(table(), kTwo);
        const Handle handle(table(), kTwo);
        const TestStream stream(table());
        ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemMap(range.at(), kTwo.size(), 0, handle.get(), 0));
        expect_dead(table().cuMemsetD8Async(range.at(), 1, kTwo.size(), stream.get()));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FatalDeathTest, WritingWhereOnlyReadingIsAllowedKillsTheContext) {
  EXPECT_EXIT(
      {
        const Range range(table(), kTwo);
        const Handle handle(table(), kTwo);
        const TestStream stream(table());
        const CUmemAccessDesc read = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
        ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemMap(range.at(), kTwo.size(), 0, handle.get(), 0));
        ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemSetAccess(range.at(), kTwo.size(), &read, 1));
        expect_dead(table().cuMemsetD8Async(range.at(), 1, kTwo.size(), stream.get()));
      },
      ::testing::ExitedWithCode(0), "");
}

} // namespace
} // namespace stillwake
