// SPDX-License-Identifier: Apache-2.0
// Streams of the emulation: their knobs, what they cost, and that a missing wait shows.
#include "tests/driver/emulation/emulated.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

namespace stillwake {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::size_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST(EmulatedStream, AMissingWaitShowsAsWrongBytes) {
  Emulated emulated;
  const Mapped memory(emulated, kMiB * 2);
  Pinned host(emulated, kMiB * 2);
  const CUstream writer = emulated.stream(), reader = emulated.stream();
  const CUevent written = emulated.event();
  DriverTable& table = emulated.table();
  const auto copy = [&](bool wait) {
    EXPECT_EQ(table.cuMemsetD8Async(memory.at(), 1, kMiB.size(), writer), CUDA_SUCCESS);
    EXPECT_EQ(table.cuStreamSynchronize(writer), CUDA_SUCCESS);
    // The writer is held back before it starts; the reader is let go at once.
    std::atomic<bool> go{false};
    EXPECT_EQ(table.cuLaunchHostFunc(
                  writer, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &go),
              CUDA_SUCCESS);
    EXPECT_EQ(table.cuMemsetD8Async(memory.at(), 2, kMiB.size(), writer), CUDA_SUCCESS);
    EXPECT_EQ(table.cuEventRecord(written, writer), CUDA_SUCCESS);
    if (wait) {
      EXPECT_EQ(table.cuStreamWaitEvent(reader, written, 0), CUDA_SUCCESS);
    }
    EXPECT_EQ(table.cuMemcpyDtoHAsync(host.data(), memory.at(), kMiB.size(), reader), CUDA_SUCCESS);
    if (!wait) {
      EXPECT_EQ(table.cuStreamSynchronize(reader), CUDA_SUCCESS);
    }
    go = true;
    go.notify_all();
    EXPECT_EQ(table.cuCtxSynchronize(), CUDA_SUCCESS);
    return host.data()[kMiB.size() - 1];
  };
  EXPECT_EQ(copy(true), 2);
  EXPECT_EQ(copy(false), 1);
}

TEST(EmulatedStream, TheDelayHoldsEachCopyBack) {
  Emulated emulated;
  const Mapped memory(emulated, kMiB * 2);
  Pinned host(emulated, kMiB * 2);
  const CUstream stream = emulated.stream();
  emulated->set_stream_delay(milliseconds(20));
  const auto before = steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(emulated.table().cuMemcpyHtoDAsync(memory.at(), host.data(), 100, stream), CUDA_SUCCESS);
  }
  EXPECT_EQ(emulated.table().cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(emulated.table().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_GE(steady_clock::now() - before, milliseconds(60));
}

TEST(EmulatedStream, ABusCarriesOneCopyAtATime) {
  Emulated emulated;
  const Mapped memory(emulated, kMiB * 8);
  Pinned host(emulated, kMiB * 8);
  emulated->set_bandwidth(kMiB * 80); // 4 MiB take 50 ms
  const auto before = steady_clock::now();
  for (std::uint64_t half : {(kMiB * 0).count(), (kMiB * 4).count()}) {
    ASSERT_EQ(
        emulated.table().cuMemcpyHtoDAsync(memory.at(half), host.data() + half, (kMiB * 4).size(), emulated.stream()),
        CUDA_SUCCESS);
  }
  ASSERT_EQ(emulated.table().cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_GE(steady_clock::now() - before, milliseconds(100));
}

TEST(EmulatedStream, EachDirectionHasABusOfItsOwn) {
  Emulated emulated;
  const Mapped memory(emulated, kMiB * 8);
  Pinned host(emulated, kMiB * 8);
  const CUstream to_device = emulated.stream(), to_host = emulated.stream();
  emulated->set_bandwidth(kMiB * 4); // 4 MiB take a second
  const auto before = steady_clock::now();
  ASSERT_EQ(emulated.table().cuMemcpyHtoDAsync(memory.at(), host.data(), (kMiB * 4).size(), to_device), CUDA_SUCCESS);
  std::this_thread::sleep_for(milliseconds(20)); // so that it is likely on its bus first
  ASSERT_EQ(
      emulated.table().cuMemcpyDtoHAsync(host.data() + (kMiB * 4).size(), memory.at((kMiB * 4).count()), 4096, to_host),
      CUDA_SUCCESS);
  ASSERT_EQ(emulated.table().cuStreamSynchronize(to_host), CUDA_SUCCESS);
  const CUresult other = emulated.table().cuStreamQuery(to_device);
  if (steady_clock::now() - before < milliseconds(1000)) { // else the machine was too busy to tell
    EXPECT_EQ(other, CUDA_ERROR_NOT_READY);
  }
  ASSERT_EQ(emulated.table().cuStreamSynchronize(to_device), CUDA_SUCCESS);
  EXPECT_GE(steady_clock::now() - before, milliseconds(1000));
}

TEST(EmulatedStream, ThousandStreamsCostNoThreadUntilTheyWork) {
  Emulated emulated;
  const std::size_t before = threads();
  std::vector<CUstream> streams;
  for (int i = 0; i < 1000; ++i) {
    streams.push_back(emulated.stream());
  }
  EXPECT_EQ(threads(), before);
  EXPECT_EQ(emulated->live_streams(), 1000u);
  const Mapped memory(emulated, kMiB * 2);
  ASSERT_EQ(emulated.table().cuMemsetD8Async(memory.at(), 1, 1, streams[500]), CUDA_SUCCESS);
  EXPECT_EQ(threads(), before + 1);
  for (CUstream stream : streams) {
    ASSERT_EQ(emulated.table().cuStreamDestroy(stream), CUDA_SUCCESS);
  }
  EXPECT_EQ(emulated->live_streams(), 0u);
}

TEST(EmulatedStream, ADestroyedStreamFinishesAndTheContextWaitsForIt) {
  Emulated emulated;
  const Mapped memory(emulated, kMiB * 2);
  const CUstream stream = emulated.stream();
  emulated->set_stream_delay(milliseconds(30));
  ASSERT_EQ(emulated.table().cuMemsetD8Async(memory.at(), 9, kMiB.size(), stream), CUDA_SUCCESS);
  ASSERT_EQ(emulated.table().cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(emulated.table().cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(emulated.table().cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(memory.bytes()[kMiB.size() - 1], 9);
}

TEST(EmulatedStream, TheEndOfAnEmulationDropsWorkThatHasNotBegun) {
  const auto before = steady_clock::now();
  {
    Emulated emulated;
    CUdeviceptr memory = 0;
    ASSERT_EQ(emulated.table().cuMemAlloc(&memory, 100), CUDA_SUCCESS);
    emulated->set_stream_delay(milliseconds(50));
    const CUstream stream = emulated.stream();
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(emulated.table().cuMemsetD8Async(memory, 1, 100, stream), CUDA_SUCCESS);
    }
  }
  EXPECT_LT(seconds(steady_clock::now() - before), 10.0);
}

TEST(EmulatedStream, CallsFromManyThreadsKeepEachStreamsOrder) {
  Emulated emulated;
  constexpr int kThreads = 4, kRounds = 200;
  std::vector<std::thread> users;
  std::atomic<int> wrong{0};
  for (int user = 0; user < kThreads; ++user) {
    users.emplace_back([&emulated, &wrong] {
      DriverTable& table = emulated.table();
      EXPECT_EQ(table.cuCtxPushCurrent(emulated.context(0)), CUDA_SUCCESS);
      {
        Mapped memory(emulated, kMiB * 2);
        Pinned host(emulated, kMiB);
        const CUstream stream = emulated.stream();
        for (int round = 1; round <= kRounds; ++round) {
          table.cuMemsetD8Async(memory.at(), static_cast<unsigned char>(round), 512, stream);
          table.cuMemcpyDtoHAsync(host.data(), memory.at(), 512, stream);
          if (round % 50 == 0) {
            EXPECT_EQ(table.cuStreamSynchronize(stream), CUDA_SUCCESS);
            wrong += host.data()[511] != static_cast<unsigned char>(round);
            memory.unmap();
            memory.map();
          }
        }
        EXPECT_EQ(table.cuStreamDestroy(stream), CUDA_SUCCESS);
      }
      CUcontext popped = nullptr;
      EXPECT_EQ(table.cuCtxPopCurrent(&popped), CUDA_SUCCESS);
    });
  }
  for (std::thread& user : users) {
    user.join();
  }
  EXPECT_EQ(wrong, 0);
}

TEST(EmulatedStream, ACaptureModeThatIsNoneIsRefused) {
  // The driver of a GPU takes such a mode, and dies of a null pointer: the emulation shows who passed it.
  Emulated emulated;
  auto mode = static_cast<CUstreamCaptureMode>(3); // within the bits of the type, and none of its values
  EXPECT_EQ(emulated.table().cuThreadExchangeStreamCaptureMode(&mode), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(emulated.table().cuThreadExchangeStreamCaptureMode(nullptr), CUDA_ERROR_INVALID_VALUE);
}

} // namespace
} // namespace stillwake
