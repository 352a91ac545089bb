// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/cgroup_limit.h"
#include "tests/base/system_files.h"

#include <gtest/gtest.h>

namespace stillwake {
namespace {

TEST(CgroupLimit, Version2TakesTheTightestOfTheGroupAndThoseAbove) {
  SystemFiles files;
  files.write("/proc/self/cgroup", "0::/a/b\n");
  files.write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  files.write("/sys/fs/cgroup/a/memory.max", "1000000\n");
  files.write("/sys/fs/cgroup/memory.max", "2000000\n");
  const auto limit = read_cgroup_limit(files.root());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->limit, Bytes(1000000));
  EXPECT_EQ(limit->room(), Bytes(1000000));
  EXPECT_EQ(limit->folder, files.root() + "/sys/fs/cgroup/a");
}

TEST(CgroupLimit, WhatOthersOfTheGroupHoldCountsButFilePagesDoNot) {
  SystemFiles files;
  files.write("/proc/self/cgroup", "0::/\n");
  files.write("/sys/fs/cgroup/memory.max", "1000\n");
  files.write("/sys/fs/cgroup/memory.current", "900\n");
  files.write("/sys/fs/cgroup/memory.stat", "anon 300\nfile 600\nshmem 100\nactive_file 200\ninactive_file 300\n");
  const auto limit = read_cgroup_limit(files.root());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->in_use, Bytes(400));
  EXPECT_EQ(limit->room(), Bytes(600));
}

TEST(CgroupLimit, TheGroupWithLeastRoomWinsOverTheSmallestLimit) {
  SystemFiles files;
  files.write("/proc/self/cgroup", "0::/a\n");
  files.write("/sys/fs/cgroup/a/memory.max", "1000\n");
  files.write("/sys/fs/cgroup/memory.max", "2000\n");
  files.write("/sys/fs/cgroup/memory.current", "1900\n");
  const auto limit = read_cgroup_limit(files.root());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->limit, Bytes(2000));
  EXPECT_EQ(limit->room(), Bytes(100));
}

TEST(CgroupLimit, Version1AndItsAbsurdNumberForNoLimit) {
  SystemFiles files;
  files.write("/proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/box/inner\n0::/\n");
  files.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(read_cgroup_limit(files.root()));
  files.write("/sys/fs/cgroup/memory/box/inner/memory.limit_in_bytes", "4096000\n");
  files.write("/sys/fs/cgroup/memory/box/inner/memory.usage_in_bytes", "96000\n");
  files.write("/sys/fs/cgroup/memory/box/inner/memory.stat", "inactive_file 1\ntotal_inactive_file 6000\n");
  const auto limit = read_cgroup_limit(files.root());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->limit, Bytes(4096000));
  EXPECT_EQ(limit->in_use, Bytes(90000));
}

TEST(CgroupLimit, InAContainerThePathOfTheHostIsNotThereButTheMountsOwnFolderIs) {
  SystemFiles files;
  files.write("/proc/self/cgroup", "0::/kubepods/pod17/abc\n");
  files.write("/sys/fs/cgroup/memory.max", "4096\n");
  ASSERT_TRUE(read_cgroup_limit(files.root()));
  EXPECT_EQ(read_cgroup_limit(files.root())->limit, Bytes(4096));
  files.write("/proc/self/cgroup", "0::/../../other\n");
  ASSERT_TRUE(read_cgroup_limit(files.root()));
}

TEST(CgroupLimit, APartIsKeptForTheProcesses) {
  const CgroupLimit small{kMiB * 160, kMiB * 50, "/job"};
  EXPECT_EQ(small.kept_for_processes(), kMiB * 10);
  EXPECT_EQ(small.free(), kMiB * 100);
  EXPECT_EQ(small.free(kMiB * 60), kMiB * 40);
  EXPECT_EQ(small.free(kMiB * 101), Bytes(0));
  const CgroupLimit large{kGiB * 100, Bytes(0), "/job"};
  EXPECT_EQ(large.kept_for_processes(), kMiB * 64);
}

TEST(CgroupLimit, OddFilesAreNoLimit) {
  SystemFiles files;
  EXPECT_FALSE(read_cgroup_limit(files.root()));
  files.write("/proc/self/cgroup", "nonsense\n::\n0::\n0::relative\n:memory:\n0::/a\n");
  EXPECT_FALSE(read_cgroup_limit(files.root()));
  files.write("/sys/fs/cgroup/a/memory.max", "12 apples");
  EXPECT_EQ(read_cgroup_limit(files.root())->limit, Bytes(12));
  files.write("/sys/fs/cgroup/a/memory.max", "apples");
  EXPECT_FALSE(read_cgroup_limit(files.root()));
  files.write("/sys/fs/cgroup/a/memory.max", "");
  EXPECT_FALSE(read_cgroup_limit(files.root()));
}

} // namespace
} // namespace stillwake
