// SPDX-License-Identifier: Apache-2.0
// What touches memory that is not there kills the context of its device, and nothing else. The codes are those that an
// H200 gave (docs/design/emulated-driver.md).
#include "tests/driver/emulation/emulated.h"

#include <atomic>
#include <csignal>

namespace stillwake {
namespace {

// poke(address, value) writes one word.
void poke(const KernelLaunch& launch) {
  **static_cast<volatile unsigned**>(launch.parameters[0]) = *static_cast<unsigned*>(launch.parameters[1]);
}
void peek(const KernelLaunch& launch) {
  **static_cast<unsigned**>(launch.parameters[1]) = **static_cast<volatile unsigned**>(launch.parameters[0]);
}

class EmulatedFault : public ::testing::Test {
protected:
  EmulatedFault() : emulated_({.devices = 2, .memory = kMiB * 64, .share = {}}) {
    emulated_->register_kernel("poke", poke, {sizeof(CUdeviceptr), sizeof(unsigned)});
    emulated_->register_kernel("peek", peek, {sizeof(CUdeviceptr), sizeof(CUdeviceptr)});
    stream_ = emulated_.stream();
  }
  CUresult run_poke(CUdeviceptr address) {
    unsigned value = 7;
    EXPECT_EQ(emulated_.launch(emulated_.function("poke"), stream_, {&address, &value}), CUDA_SUCCESS);
    return emulated_.table().cuStreamSynchronize(stream_);
  }
  void expect_dead(CUresult error) {
    DriverTable& table = emulated_.table();
    CUdeviceptr memory = 0;
    CUevent event = nullptr;
    CUstream other = nullptr;
    EXPECT_EQ(table.cuCtxSynchronize(), error);
    EXPECT_EQ(table.cuStreamQuery(nullptr), error);
    EXPECT_EQ(table.cuMemAlloc(&memory, 100), error);
    EXPECT_EQ(table.cuEventCreate(&event, 0), error);
    EXPECT_EQ(table.cuStreamCreate(&other, 0), error);
    EXPECT_EQ(table.cuStreamDestroy(stream_), error);
    // Virtual memory is not the context's: it can still be given back.
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(emulated_.create(kMiB * 2, handle), CUDA_SUCCESS);
    EXPECT_EQ(table.cuMemRelease(handle), CUDA_SUCCESS);
    // And the other device works on.
    EXPECT_EQ(table.cuCtxPushCurrent(emulated_.context(1)), CUDA_SUCCESS);
    EXPECT_EQ(table.cuMemAlloc(&memory, 100), CUDA_SUCCESS);
    EXPECT_EQ(table.cuMemFree(memory), CUDA_SUCCESS);
    CUcontext popped = nullptr;
    EXPECT_EQ(table.cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  }

  Emulated emulated_;
  CUstream stream_ = nullptr;
};

TEST_F(EmulatedFault, AKernelThatWritesUnmappedMemory) {
  Mapped memory(emulated_, kMiB * 2);
  ASSERT_EQ(run_poke(memory.at(64)), CUDA_SUCCESS);
  EXPECT_EQ(memory.bytes()[64], 7);
  memory.unmap();
  EXPECT_EQ(run_poke(memory.at(64)), CUDA_ERROR_ILLEGAL_ADDRESS);
  expect_dead(CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(EmulatedFault, AKernelThatWritesReadOnlyMemory) {
  Mapped memory(emulated_, kMiB * 2);
  Mapped out(emulated_, kMiB * 2);
  memory.bytes()[0] = 42;
  ASSERT_EQ(emulated_.set_access(memory.at(), kMiB * 2, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  CUdeviceptr from = memory.at(), to = out.at();
  ASSERT_EQ(emulated_.launch(emulated_.function("peek"), stream_, {&from, &to}), CUDA_SUCCESS);
  ASSERT_EQ(emulated_.table().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(out.bytes()[0], 42);
  EXPECT_EQ(run_poke(memory.at()), CUDA_ERROR_ILLEGAL_ADDRESS);
  expect_dead(CUDA_ERROR_ILLEGAL_ADDRESS);
}

// Work that waits behind a host function while its memory is unmapped.
class Gate {
public:
  void hold(DriverTable& table, CUstream stream) {
    EXPECT_EQ(table.cuLaunchHostFunc(
                  stream, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &open_),
              CUDA_SUCCESS);
  }
  void open() {
    open_ = true;
    open_.notify_all();
  }

private:
  std::atomic<bool> open_{false};
};

TEST_F(EmulatedFault, ACopyWhoseMemoryIsUnmappedBeforeItRuns) {
  Mapped memory(emulated_, kMiB * 2);
  Pinned host(emulated_, kMiB);
  Gate gate;
  gate.hold(emulated_.table(), stream_);
  ASSERT_EQ(emulated_.table().cuMemcpyHtoDAsync(memory.at(), host.data(), kMiB.size(), stream_), CUDA_SUCCESS);
  memory.unmap();
  gate.open();
  EXPECT_EQ(emulated_.table().cuStreamSynchronize(stream_), CUDA_ERROR_LAUNCH_FAILED);
  expect_dead(CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(EmulatedFault, AMemsetWhoseMemoryIsUnmappedBeforeItRuns) {
  Mapped memory(emulated_, kMiB * 2);
  Gate gate;
  gate.hold(emulated_.table(), stream_);
  ASSERT_EQ(emulated_.table().cuMemsetD8Async(memory.at(), 1, kMiB.size(), stream_), CUDA_SUCCESS);
  memory.unmap();
  gate.open();
  EXPECT_EQ(emulated_.table().cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  expect_dead(CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(EmulatedFault, WorkBehindAFaultIsNotDone) {
  Mapped memory(emulated_, kMiB * 2);
  Mapped gone(emulated_, kMiB * 2);
  memory.bytes()[0] = 1;
  Gate gate;
  gate.hold(emulated_.table(), stream_);
  ASSERT_EQ(emulated_.table().cuMemsetD8Async(gone.at(), 1, 1, stream_), CUDA_SUCCESS);
  ASSERT_EQ(emulated_.table().cuMemsetD8Async(memory.at(), 2, 1, stream_), CUDA_SUCCESS);
  gone.unmap();
  gate.open();
  EXPECT_EQ(emulated_.table().cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(memory.bytes()[0], 1);
}

TEST_F(EmulatedFault, AGraphReplaysOntoNewPagesAndDiesOnNone) {
  DriverTable& table = emulated_.table();
  Mapped memory(emulated_, kMiB * 2);
  const CUfunction function = emulated_.function("poke");
  CUdeviceptr address = memory.at(8);
  unsigned value = 5;
  ASSERT_EQ(table.cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(table.cuMemsetD8Async(memory.at(), 1, 64, stream_), CUDA_SUCCESS);
  ASSERT_EQ(emulated_.launch(function, stream_, {&address, &value}), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(table.cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  ASSERT_EQ(table.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(table.cuGraphDestroy(graph), CUDA_SUCCESS);
  memory.unmap();
  memory.map();
  address = 0, value = 0; // the graph has its own
  std::fill_n(memory.bytes(), 64, static_cast<unsigned char>(0));
  ASSERT_EQ(table.cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
  ASSERT_EQ(table.cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(memory.bytes()[7], 1);
  EXPECT_EQ(memory.bytes()[8], 5);
  EXPECT_EQ(memory.bytes()[12], 1);
  memory.unmap();
  ASSERT_EQ(table.cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
  EXPECT_EQ(table.cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(table.cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(EmulatedFault, AKernelHasItsParametersFromTheTimeOfTheCall) {
  Mapped memory(emulated_, kMiB * 2);
  Gate gate;
  gate.hold(emulated_.table(), stream_);
  CUdeviceptr address = memory.at();
  unsigned value = 11;
  ASSERT_EQ(emulated_.launch(emulated_.function("poke"), stream_, {&address, &value}), CUDA_SUCCESS);
  address = 0, value = 0;
  gate.open();
  ASSERT_EQ(emulated_.table().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(memory.bytes()[0], 11);
}

TEST_F(EmulatedFault, AnUnknownKernelIsNotFound) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(emulated_.table().cuModuleLoadData(&module, "an image"), CUDA_SUCCESS);
  EXPECT_EQ(emulated_.table().cuModuleGetFunction(&function, module, "none"), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(emulated_.table().cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(emulated_.table().cuModuleGetFunction(&function, module, "poke"), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(EmulatedFault, AHostFunctionMayMakeNoCall) {
  struct Seen {
    DriverTable& table;
    CUresult result;
  } seen{emulated_.table(), CUDA_SUCCESS};
  ASSERT_EQ(emulated_.table().cuLaunchHostFunc(
                stream_,
                [](void* argument) {
                  auto& at = *static_cast<Seen*>(argument);
                  at.result = at.table.cuCtxSynchronize();
                },
                &seen),
            CUDA_SUCCESS);
  ASSERT_EQ(emulated_.table().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(seen.result, CUDA_ERROR_NOT_PERMITTED);
}

TEST(EmulatedFaultDeathTest, AFaultOfOurOwnThreadsStillEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        Emulated emulated;
        *reinterpret_cast<volatile char*>(emulated.reserve(kMiB * 2)) = 1;
      },
      "");
}

} // namespace
} // namespace stillwake
