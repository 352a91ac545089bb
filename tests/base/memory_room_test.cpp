// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/memory_room.h"
#include "tests/base/system_files.h"

#include <gtest/gtest.h>

namespace stillwake {
namespace {

constexpr const char* kMeminfo = "MemTotal:       8000 kB\n"
                                 "MemFree:          10 kB\n"
                                 "MemAvailable:   3000 kB\n"
                                 "SwapFree:        500 kB\n"
                                 "HugePages_Total:   0\n"
                                 "Hugepagesize:   2048 kB\n";

TEST(MemoryRoom, WithoutALimitItIsWhatTheSystemHasAvailableAndItsSwap) {
  SystemFiles files;
  files.write("/proc/meminfo", kMeminfo);
  const auto room = memory_room(files.root());
  ASSERT_TRUE(room);
  EXPECT_EQ(room->free, Bytes(3500 * 1024));
  EXPECT_EQ(room->whose, "the system");
}

TEST(MemoryRoom, TheOneThatLeavesLessIsNamed) {
  SystemFiles files;
  files.write("/proc/meminfo", kMeminfo);
  files.write("/proc/self/cgroup", "0::/job\n");
  files.write("/sys/fs/cgroup/job/memory.max", "2000000\n");
  files.write("/sys/fs/cgroup/job/memory.current", "500000\n");
  auto room = memory_room(files.root());
  ASSERT_TRUE(room);
  EXPECT_EQ(room->free, Bytes(1500000));
  EXPECT_EQ(room->whose, "the control group " + files.root() + "/sys/fs/cgroup/job");
  files.write("/sys/fs/cgroup/job/memory.max", "20000000\n");
  room = memory_room(files.root());
  ASSERT_TRUE(room);
  EXPECT_EQ(room->whose, "the system");
}

TEST(MemoryRoom, WhatCannotBeReadIsNoLimit) {
  SystemFiles files;
  EXPECT_FALSE(memory_room(files.root()));
  files.write("/proc/meminfo", "MemTotal: 8000 kB\nSwapFree: 500 kB\n");
  EXPECT_FALSE(memory_room(files.root()));
}

TEST(MemoryRoom, OfThisMachineItIsPlausible) {
  const auto room = memory_room();
  ASSERT_TRUE(room);
  EXPECT_GT(room->free, kMiB);
  EXPECT_LT(room->free, kGiB * (1 << 20));
}

} // namespace
} // namespace stillwake
