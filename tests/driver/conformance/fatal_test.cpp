// SPDX-License-Identifier: Apache-2.0
// What kills a context: pages that go while work on them waits. Unmapping does not wait for the work, so a sleep that
// does not quiesce ends like this. Each case runs in a program started anew and leaves by _exit: 0 says that the error
// was met, and that every later call answered as it must.
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

#include <cstdio>
#include <optional>
#include <unistd.h>

namespace stillwake {
namespace {

constexpr Bytes kTwo = kMiB * 2;

class FatalDeathTest : public Conformance {
protected:
  /// Whether the call answers so; told where it does not.
  bool answers(const char* what, CUresult expected, CUresult got) {
    if (got != expected) {
      std::fprintf(stderr, "%s answers %s instead of %s\n", what, named(got).c_str(), named(expected).c_str());
    }
    return got == expected;
  }

  /// Ends the program. Everything that needs the context answers with the error that killed it, for good; the memory
  /// calls, which need none, still work: pages can be given back.
  [[noreturn]] void expect_dead(CUresult error, CUstream stream, CUdeviceptr reserved, Bytes size) {
    std::size_t free = 0;
    std::size_t total = 0;
    CUevent event = nullptr;
    CUdeviceptr memory = 0;
    CUcontext popped = nullptr;
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp device_memory = on_device(0);
    bool good = answers("waiting for the stream", error, table().cuStreamSynchronize(stream));
    good &= answers("waiting again", error, table().cuStreamSynchronize(stream));
    good &= answers("waiting for the context", error, table().cuCtxSynchronize());
    good &= answers("asking the stream", error, table().cuStreamQuery(stream));
    good &= answers("cuEventCreate", error, table().cuEventCreate(&event, CU_EVENT_DEFAULT));
    good &= answers("cuMemAlloc", error, table().cuMemAlloc(&memory, kTwo.size()));
    good &= answers("cuMemGetInfo", error, table().cuMemGetInfo(&free, &total));
    good &= answers("cuStreamDestroy", error, table().cuStreamDestroy(stream));
    good &= answers("cuMemCreate", CUDA_SUCCESS, table().cuMemCreate(&handle, kTwo.size(), &device_memory, 0));
    good &= answers("cuMemMap", CUDA_SUCCESS, table().cuMemMap(reserved, kTwo.size(), 0, handle, 0));
    good &= answers("cuMemUnmap", CUDA_SUCCESS, table().cuMemUnmap(reserved, kTwo.size()));
    good &= answers("cuMemRelease", CUDA_SUCCESS, table().cuMemRelease(handle));
    good &= answers("cuMemAddressFree", CUDA_SUCCESS, table().cuMemAddressFree(reserved, size.size()));
    good &= answers("cuCtxPushCurrent", CUDA_SUCCESS, table().cuCtxPushCurrent(device().context()));
    good &= answers("cuCtxPopCurrent", CUDA_SUCCESS, table().cuCtxPopCurrent(&popped));
    std::fflush(stderr);
    _exit(good ? 0 : 1);
  }

  // What the cases start from; never given back, for the program ends inside them.
  struct Stage {
    explicit Stage(DriverTable& table)
        : range(table, kTwo), handle(table, kTwo), placed(std::in_place, table, range.at(), handle, kTwo),
          host(table, kTwo, HostMemory::Pinned::kYes), stream(table) {}
    Range range;
    Handle handle;
    std::optional<Placed> placed;
    HostMemory host;
    TestStream stream;
    Blocker blocker;
  };
};

TEST_F(FatalDeathTest, AMemsetWhosePagesWentIsAnIllegalAddress) {
  EXPECT_EXIT(
      {
        Stage stage(table());
        stage.blocker.hold(table(), stage.stream.get());
        EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(stage.range.at(), 1, kTwo.size(), stage.stream.get()));
        stage.placed->unmap();
        stage.blocker.let_go();
        expect_dead(CUDA_ERROR_ILLEGAL_ADDRESS, stage.stream.get(), stage.range.at(), kTwo);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FatalDeathTest, ACopyWhosePagesWentIsAFailedLaunch) {
  EXPECT_EXIT(
      {
        Stage stage(table());
        stage.blocker.hold(table(), stage.stream.get());
        EXPECT_ANSWER(CUDA_SUCCESS,
                      table().cuMemcpyHtoDAsync(stage.range.at(), stage.host.at(), kTwo.size(), stage.stream.get()));
        stage.placed->unmap();
        stage.blocker.let_go();
        expect_dead(CUDA_ERROR_LAUNCH_FAILED, stage.stream.get(), stage.range.at(), kTwo);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FatalDeathTest, AGraphReplayedOverPagesThatWentIsAnIllegalAddress) {
  EXPECT_EXIT(
      {
        Stage stage(table());
        const CUstream stream = stage.stream.get();
        EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(stage.range.at(), 1, kTwo.size(), stream));
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamEndCapture(stream, &graph));
        EXPECT_ANSWER(CUDA_SUCCESS, table().cuGraphInstantiateWithFlags(&exec, graph, 0));
        EXPECT_ANSWER(CUDA_SUCCESS, table().cuGraphLaunch(exec, stream));
        EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream));
        stage.placed->unmap();
        EXPECT_ANSWER(CUDA_SUCCESS, table().cuGraphLaunch(exec, stream));
        expect_dead(CUDA_ERROR_ILLEGAL_ADDRESS, stream, stage.range.at(), kTwo);
      },
      ::testing::ExitedWithCode(0), "");
}

} // namespace
} // namespace stillwake
