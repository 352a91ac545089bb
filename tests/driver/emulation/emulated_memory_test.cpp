// SPDX-License-Identifier: Apache-2.0
// Device memory of the emulation: what the system holds for it, what new pages hold, what a device can take.
#include "tests/base/system_files.h"
#include "tests/driver/emulation/emulated.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stillwake {
namespace {

constexpr DeviceIndex kFirst{0};

TEST(EmulatedMemory, NewPagesHoldNoZeroAnywhere) {
  Emulated emulated;
  const Mapped memory(emulated, kMiB * 4);
  EXPECT_EQ(std::count(memory.bytes(), memory.bytes() + (kMiB * 4).size(), 0), 0);
}

TEST(EmulatedMemory, NoPageShowsWhatAnEarlierOneHeld) {
  Emulated emulated({.devices = 1, .memory = kMiB * 2, .share = {}});
  for (int round = 0; round < 3; ++round) {
    const Mapped memory(emulated, kMiB * 2);
    EXPECT_EQ(std::count(memory.bytes(), memory.bytes() + kMiB.size(), 0x77), 0) << round;
    std::fill_n(memory.bytes(), (kMiB * 2).size(), static_cast<unsigned char>(0x77));
  }
}

TEST(EmulatedMemory, AHandleKeepsItsBytesWhileUnmapped) {
  Emulated emulated;
  Mapped memory(emulated, kMiB * 2);
  std::fill_n(memory.bytes(), (kMiB * 2).size(), static_cast<unsigned char>(3));
  memory.unmap();
  memory.map();
  EXPECT_EQ(std::count(memory.bytes(), memory.bytes() + (kMiB * 2).size(), 3), static_cast<long>((kMiB * 2).size()));
}

TEST(EmulatedMemory, TheCapacityIsCountedExactly) {
  Emulated emulated({.devices = 1, .memory = kMiB * 10, .share = {}});
  CUmemGenericAllocationHandle handles[3] = {};
  ASSERT_EQ(emulated.create(kMiB * 6, handles[0]), CUDA_SUCCESS);
  EXPECT_EQ(emulated.create(kMiB * 6, handles[1]), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(emulated.create(kMiB * 4, handles[1]), CUDA_SUCCESS);
  CUdeviceptr allocated = 0;
  EXPECT_EQ(emulated.table().cuMemAlloc(&allocated, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(emulated->used(kFirst), kMiB * 10);
  std::size_t free = 1, total = 0;
  ASSERT_EQ(emulated.table().cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 0u);
  EXPECT_EQ(total, (kMiB * 10).size());

  ASSERT_EQ(emulated.table().cuMemRelease(handles[1]), CUDA_SUCCESS);
  ASSERT_EQ(emulated.table().cuMemAlloc(&allocated, 1), CUDA_SUCCESS);
  EXPECT_EQ(emulated->used(kFirst), kMiB * 8); // a byte takes a granule
  ASSERT_EQ(emulated.table().cuMemFree(allocated), CUDA_SUCCESS);
  ASSERT_EQ(emulated.table().cuMemRelease(handles[0]), CUDA_SUCCESS);
  EXPECT_EQ(emulated->used(kFirst), Bytes(0));
  EXPECT_EQ(emulated->live_handles(), 0u);
}

TEST(EmulatedMemory, ASmallerCapacityTakesNothingAway) {
  Emulated emulated;
  const Mapped memory(emulated, kMiB * 8);
  emulated->set_capacity(kFirst, kMiB * 4);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(emulated.create(kMiB * 2, handle), CUDA_ERROR_OUT_OF_MEMORY);
  memory.bytes()[0] = 1;
  std::size_t free = 1, total = 0;
  ASSERT_EQ(emulated.table().cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 0u);
  emulated->set_capacity(kFirst, kMiB * 16);
  ASSERT_EQ(emulated.create(kMiB * 8, handle), CUDA_SUCCESS);
  EXPECT_EQ(emulated.table().cuMemRelease(handle), CUDA_SUCCESS);
}

TEST(EmulatedMemory, ReleasedBytesGoBackToTheSystem) {
  Emulated emulated;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(emulated.create(kMiB * 32, handle), CUDA_SUCCESS);
  EXPECT_GE(emulated->resident(kFirst), kMiB * 32);
  const CUdeviceptr address = emulated.reserve(kMiB * 32);
  ASSERT_EQ(emulated.table().cuMemMap(address, (kMiB * 32).size(), 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(emulated.table().cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(emulated->used(kFirst), kMiB * 32) << "the mapping still holds it";
  EXPECT_EQ(emulated->live_handles(), 1u);
  ASSERT_EQ(emulated.table().cuMemUnmap(address, (kMiB * 32).size()), CUDA_SUCCESS);
  EXPECT_EQ(emulated->used(kFirst), Bytes(0));
  EXPECT_EQ(emulated->resident(kFirst), Bytes(0));
  EXPECT_EQ(emulated->live_handles(), 0u);
  EXPECT_EQ(emulated->live_reservations(), 1u);
  ASSERT_EQ(emulated.table().cuMemAddressFree(address, (kMiB * 32).size()), CUDA_SUCCESS);
  EXPECT_EQ(emulated->live_reservations(), 0u);
}

TEST(EmulatedMemory, MemoryWithoutThePatternCostsNothingUntilItIsTouched) {
  Emulated emulated({.devices = 1, .memory = kGiB * 64, .share = {}});
  emulated->set_pattern(false);
  Mapped memory(emulated, kGiB * 32);
  EXPECT_LT(emulated->resident(kFirst), kMiB);
  memory.bytes()[(kGiB * 31).size()] = 1;
  EXPECT_GT(emulated->resident(kFirst), Bytes(0));
}

TEST(EmulatedMemory, TenThousandExtentsMapInWellUnderASecond) {
  constexpr int kExtents = 10000;
  Emulated emulated({.devices = 1, .memory = kGiB * 64, .share = {}});
  emulated->set_pattern(false);
  const CUdeviceptr address = emulated.reserve(kMiB * 2 * kExtents);
  std::vector<CUmemGenericAllocationHandle> handles(kExtents);
  for (auto& handle : handles) {
    ASSERT_EQ(emulated.create(kMiB * 2, handle), CUDA_SUCCESS);
  }
  const std::clock_t before = std::clock(); // of this process, so that a busy machine does not count
  for (int i = 0; i < kExtents; ++i) {
    const CUdeviceptr at = address + (kMiB * 2 * static_cast<std::uint64_t>(i)).count();
    ASSERT_EQ(emulated.table().cuMemMap(at, (kMiB * 2).size(), 0, handles[static_cast<std::size_t>(i)], 0),
              CUDA_SUCCESS);
  }
  ASSERT_EQ(emulated.set_access(address, kMiB * 2 * kExtents), CUDA_SUCCESS);
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC);
  reinterpret_cast<char*>(address)[(kMiB * 2 * (kExtents - 1)).size()] = 1;
  ASSERT_EQ(emulated.table().cuMemUnmap(address, (kMiB * 2 * kExtents).size()), CUDA_SUCCESS);
  for (auto handle : handles) {
    ASSERT_EQ(emulated.table().cuMemRelease(handle), CUDA_SUCCESS);
  }
  EXPECT_EQ(emulated->used(kFirst), Bytes(0));
}

TEST(EmulatedMemory, AChildMadeByForkSeesNoneOfIt) {
  Emulated emulated;
  const Mapped memory(emulated, kMiB * 2);
  memory.bytes()[0] = 1;
  Mapped again(emulated, kMiB * 2);
  again.unmap(); // every change of the page table must keep the rule
  CUdeviceptr allocated = 0;
  ASSERT_EQ(emulated.table().cuMemAlloc(&allocated, 100), CUDA_SUCCESS);
  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char resident = 0;
    for (const CUdeviceptr address : {memory.at(), again.at(), allocated}) {
      if (::mincore(reinterpret_cast<void*>(address), 4096, &resident) != -1 || errno != ENOMEM) {
        ::_exit(1);
      }
    }
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(emulated.table().cuMemFree(allocated), CUDA_SUCCESS);
}

TEST(EmulatedMemory, ASystemThatRefusesMoreIsOutOfMemoryAndTakesNothing) {
  Emulated emulated({.devices = 1, .memory = kMiB * 64, .share = {}});
  CUmemGenericAllocationHandle first = 0, second = 0;
  ASSERT_EQ(emulated.create(kMiB * 8, first), CUDA_SUCCESS);
  // A limit on file sizes refuses writes as a full file system does, and needs no full one.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little{(kMiB * 9).count(), before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  EXPECT_EQ(emulated.create(kMiB * 8, second), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(emulated->used(kFirst), kMiB * 8);
  ASSERT_EQ(emulated.create(kMiB * 8, second), CUDA_SUCCESS);
  EXPECT_EQ(emulated.table().cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(emulated.table().cuMemRelease(second), CUDA_SUCCESS);
  EXPECT_EQ(emulated->resident(kFirst), Bytes(0));
}

TEST(EmulatedMemory, RegisteringTouchesNothing) {
  Emulated emulated;
  const std::size_t size = (kMiB * 16).size();
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(emulated.table().cuMemHostRegister(memory, size, 0), CUDA_SUCCESS);
  EXPECT_EQ(emulated->live_registrations(), 1u);
  std::vector<unsigned char> resident(size / 4096);
  ASSERT_EQ(::mincore(memory, size, resident.data()), 0);
  EXPECT_EQ(std::count_if(resident.begin(), resident.end(), [](unsigned char page) { return (page & 1) != 0; }), 0);
  EXPECT_EQ(emulated.table().cuMemHostUnregister(memory), CUDA_SUCCESS);
  EXPECT_EQ(emulated->live_registrations(), 0u);

  ASSERT_EQ(::mprotect(static_cast<char*>(memory) + size / 2, 4096, PROT_NONE), 0);
  EXPECT_EQ(emulated.table().cuMemHostRegister(memory, size, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(emulated.table().cuMemHostRegister(memory, size / 2, 0), CUDA_SUCCESS);
  EXPECT_EQ(emulated.table().cuMemHostUnregister(memory), CUDA_SUCCESS);
  ::munmap(memory, size);
}

// A group that is full loses a process.
TEST(EmulatedMemory, WhatAControlGroupHasNoRoomForIsOutOfMemoryAndNoKill) {
  SystemFiles files;
  files.write_group(kMiB * 64, kMiB * 44);
  Emulated emulated({.devices = 1, .memory = kGiB, .share = {}, .system_root = files.root()});
  CUmemGenericAllocationHandle fits = 0;
  CUmemGenericAllocationHandle too_much = 0;
  EXPECT_EQ(emulated.create(kMiB * 16, fits), CUDA_SUCCESS);
  EXPECT_EQ(emulated.create(kMiB * 18, too_much), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(emulated.table().explain(CallId::cuMemCreate),
            "the memory file of an emulated device needs 18.0 MiB (18874368 bytes) more, free are 16.0 MiB (16777216 " +
                std::string("bytes) of 64.0 MiB (the limit of the control group ") + files.group_folder() +
                ", of which 4.0 MiB are kept for the processes themselves)");
  EXPECT_EQ(emulated->used(kFirst), kMiB * 16) << "nothing of it was taken";
  files.write_group(kMiB * 64, kMiB * 42);
  EXPECT_EQ(emulated.create(kMiB * 18, too_much), CUDA_SUCCESS);
  EXPECT_EQ(emulated.table().cuMemRelease(too_much), CUDA_SUCCESS);
  EXPECT_EQ(emulated.table().cuMemRelease(fits), CUDA_SUCCESS);

  files.write_group(kMiB);
  emulated->set_pattern(false); // takes nothing before it is touched
  EXPECT_EQ(emulated.create(kMiB * 512, fits), CUDA_SUCCESS);
  EXPECT_EQ(emulated.table().cuMemRelease(fits), CUDA_SUCCESS);
}

TEST(EmulatedMemory, WrongOptionsAreRefusedWithTheRightOnes) {
  for (const EmulationOptions& wrong :
       {EmulationOptions{0, kMiB * 2, {}}, EmulationOptions{65, kMiB * 2, {}}, EmulationOptions{1, kMiB, {}},
        EmulationOptions{1, kMiB * 2, "a/b"}, EmulationOptions{1, kMiB * 2, std::string(65, 'a')}}) {
    const auto made = Emulation::create(wrong);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    const std::string& message = made.error().message;
    EXPECT_TRUE(message.find("must") != std::string::npos || message.find("use") != std::string::npos) << message;
  }
}

} // namespace
} // namespace stillwake
