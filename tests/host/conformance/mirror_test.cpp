// SPDX-License-Identifier: Apache-2.0
// What pinned host memory must do on any driver: run on the real one and on the emulation. 77 without a driver.
#include "allocator/host/host.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace stillwake {
namespace {

Driver* program_driver = nullptr;

PageRange range(std::uint64_t first, std::uint64_t count) { return {Pages(first), Pages(count)}; }

Bytes resident() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t pages = 0;
  statm >> total >> pages;
  return Bytes(pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
}

class MirrorConformance : public ::testing::Test {
protected:
  void SetUp() override {
    auto device = program_driver->device(DeviceIndex(0));
    ASSERT_TRUE(device) << device.error().describe();
    device_ = *device;
    auto mirror = Mirror::create(arena_, *device_, kGiB * 16);
    ASSERT_TRUE(mirror) << mirror.error().describe();
    mirror_ = std::move(*mirror);
  }

  void arrange(const std::vector<PageRange>& wanted) {
    auto job = mirror_->arrange(wanted, Pages(0));
    ASSERT_TRUE(job) << job.error().describe();
    const auto finished = (*job)->finish();
    ASSERT_TRUE(finished) << finished.error().describe();
    mirror_->check_invariants();
  }
  void fill(PageRange pages, std::uint64_t seed) {
    auto* words = reinterpret_cast<std::uint64_t*>(mirror_->at(pages.first));
    for (std::size_t at = 0; at < Bytes(pages.count).size() / 8; ++at) {
      words[at] = seed + at;
    }
  }
  bool holds(PageRange pages, std::uint64_t seed) {
    const auto* words = reinterpret_cast<std::uint64_t*>(mirror_->at(pages.first));
    for (std::size_t at = 0; at < Bytes(pages.count).size() / 8; ++at) {
      if (words[at] != seed + at) {
        return false;
      }
    }
    return true;
  }
  /// One copy of `from` to the device and one from there to `to`, asynchronous as for pinned memory.
  void copy_through(Device& device, PageRange from, PageRange to) {
    ContextScope scope(device);
    ASSERT_TRUE(scope.entered());
    auto stream = OwnedStream::create(device);
    ASSERT_TRUE(stream);
    DriverTable& table = device.table();
    const std::size_t size = Bytes(from.count).size();
    CUdeviceptr memory = 0;
    ASSERT_EQ(table.cuMemAlloc(&memory, size), CUDA_SUCCESS);
    EXPECT_EQ(table.cuMemcpyHtoDAsync(memory, mirror_->at(from.first), size, stream->get()), CUDA_SUCCESS);
    EXPECT_EQ(table.cuMemcpyDtoHAsync(mirror_->at(to.first), memory, size, stream->get()), CUDA_SUCCESS);
    EXPECT_TRUE(stream->synchronize());
    EXPECT_EQ(table.cuMemFree(memory), CUDA_SUCCESS);
  }

  HostArena arena_;
  Device* device_ = nullptr;
  std::unique_ptr<Mirror> mirror_;
};

TEST_F(MirrorConformance, OneCopyGoesOverAWholeGrownPieceWithItsContent) {
  arrange({range(3, 4), range(9, 2), range(100, 16)});
  fill(range(3, 4), 1000);
  fill(range(9, 2), 5000);
  arrange({range(1, 12), range(100, 16)});
  EXPECT_TRUE(holds(range(3, 4), 1000));
  EXPECT_TRUE(holds(range(9, 2), 5000));
  fill(range(1, 12), 7);
  copy_through(*device_, range(1, 12), range(101, 12));
  EXPECT_TRUE(holds(range(101, 12), 7));
}

TEST_F(MirrorConformance, AShrunkPieceStillCopies) {
  arrange({range(0, 20), range(40, 8)});
  fill(range(0, 20), 3);
  arrange({range(0, 6), range(8, 8), range(40, 8)});
  const std::uint64_t words_before = Bytes(Pages(8)).count() / 8;
  EXPECT_TRUE(holds(range(8, 8), 3 + words_before));
  copy_through(*device_, range(8, 8), range(40, 8));
  EXPECT_TRUE(holds(range(40, 8), 3 + words_before));
}

TEST_F(MirrorConformance, EveryDeviceCopiesFromIt) {
  for (int index = 0; index < program_driver->device_count(); ++index) {
    auto device = program_driver->device(DeviceIndex(index));
    ASSERT_TRUE(device);
    arrange({range(0, 4), range(8, 4)});
    fill(range(0, 4), static_cast<std::uint64_t>(index) * 77);
    copy_through(**device, range(0, 4), range(8, 4));
    EXPECT_TRUE(holds(range(8, 4), static_cast<std::uint64_t>(index) * 77));
  }
}

TEST_F(MirrorConformance, FrC5_AfterARefusedRegistrationTheDeviceWorksOn) {
  arrange({range(0, 4)});
  program_driver->gate().arm({Fault{CallId::cuMemHostRegister, 2, CUDA_ERROR_OUT_OF_MEMORY, false}});
  const std::vector<PageRange> more = {range(0, 4), range(8, 2), range(12, 2), range(16, 2)};
  auto job = mirror_->arrange(more, Pages(0));
  ASSERT_TRUE(job);
  const auto refused = (*job)->finish();
  program_driver->gate().arm({});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfHostMemory);
  EXPECT_EQ(mirror_->pieces(), std::vector<PageRange>{range(0, 4)});
  fill(range(0, 2), 9);
  copy_through(*device_, range(0, 2), range(2, 2));
  EXPECT_TRUE(holds(range(2, 2), 9));
  arrange(more);
}

TEST_F(MirrorConformance, AChildHasNothingOfIt) {
  arrange({range(0, 8), range(20, 4)});
  arrange({range(0, 9), range(20, 2)}); // both were unpinned, and pinned anew
  const pid_t child = fork();
  if (child == 0) {
    int ends[2];
    bool there = pipe(ends) != 0;
    for (std::uint64_t page : {0, 8, 20, 22, 5000}) { // pinned, given up, never used
      there = there || write(ends[1], mirror_->at(Pages(page)), 1) == 1 || errno != EFAULT;
    }
    mirror_.reset();
    _exit(there ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(MirrorConformance, FrD3_ClearGivesTheMemoryBackAndFrD1_AgainPinsNothing) {
  const bool real = program_driver->kind() == DriverKind::kCuda;
  const std::uint64_t piece = 128;            // 256 MiB
  const std::uint64_t pieces = real ? 32 : 1; // 8 GiB
  std::vector<PageRange> wanted;
  for (std::uint64_t i = 0; i < pieces; ++i) {
    wanted.push_back(range(i * (piece + 1), piece));
  }
  const Bytes size(Pages(piece * pieces));
  const Bytes before = resident();
  for (const char* round : {"first", "second"}) {
    const auto start = std::chrono::steady_clock::now();
    arrange(wanted);
    const double taken = seconds(std::chrono::steady_clock::now() - start);
    EXPECT_LT(before + size, resident() + kMiB * 16);
    const std::uint64_t calls = program_driver->gate().calls(CallId::cuMemHostRegister);
    arrange(wanted);
    EXPECT_EQ(program_driver->gate().calls(CallId::cuMemHostRegister), calls);
    const auto clearing = std::chrono::steady_clock::now();
    ASSERT_TRUE(mirror_->clear());
    std::printf("%s time: pinned %s in %.3f s (%.1f GB/s), cleared in %.3f s\n", round, readable(size).c_str(), taken,
                static_cast<double>(size.count()) / 1e9 / taken, seconds(std::chrono::steady_clock::now() - clearing));
    EXPECT_LT(resident(), before + kMiB * 64);
  }
}

} // namespace
} // namespace stillwake

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto driver = stillwake::Driver::open();
  if (!driver) {
    std::fprintf(stderr, "%s\n", driver.error().describe().c_str());
    return driver.error().code == stillwake::ErrorCode::kDriverMissing ? 77 : 1;
  }
  std::printf("on the %s\n", driver->describe().c_str());
  std::fflush(stdout);
  stillwake::program_driver = &*driver;
  return RUN_ALL_TESTS();
}
