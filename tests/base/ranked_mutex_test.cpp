// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include <thread>

namespace stillwake {
namespace {

TEST(RankedMutex, RisingRanksAreTakenAndReleasedInAnyOrder) {
  RankedMutex shard(LockRank::kShard);
  RankedMutex heap(LockRank::kHeap);
  RankedMutex log(LockRank::kLog);
  RankedLock outer(shard);
  RankedLock middle(heap);
  outer.unlock();
  const RankedLock inner(log);
  middle.unlock();
}

TEST(RankedMutex, KeepsOthersOut) {
  RankedMutex mutex(LockRank::kHost);
  int count = 0;
  const auto work = [&] {
    for (int i = 0; i < 20000; ++i) {
      const RankedLock lock(mutex);
      ++count;
    }
  };
  std::thread one(work);
  std::thread two(work);
  one.join();
  two.join();
  EXPECT_EQ(count, 40000);
}

TEST(RankedMutex, TryLockSaysWhetherItGotIt) {
  RankedMutex mutex(LockRank::kHost);
  ASSERT_TRUE(mutex.try_lock());
  bool got = true;
  std::thread([&] { got = mutex.try_lock(); }).join();
  EXPECT_FALSE(got);
  mutex.unlock();
  ASSERT_TRUE(mutex.try_lock());
  mutex.unlock();
}

#ifndef NDEBUG
TEST(RankedMutexDeathTest, AFallingOrEqualRankAbortsWithBoth) {
  EXPECT_DEATH(
      {
        RankedMutex heap(LockRank::kHeap);
        RankedMutex shard(LockRank::kShard);
        const RankedLock inner(heap);
        const RankedLock outer(shard);
      },
      "invariant broken.*\\(40 against 30\\)");
  EXPECT_DEATH(
      {
        RankedMutex one(LockRank::kShard);
        RankedMutex two(LockRank::kShard);
        const RankedLock first(one);
        const RankedLock second(two);
      },
      "invariant broken.*\\(30 against 30\\)");
}
#endif

// Destroyed when the process exits, after everything of the main thread's own: an owner of a lock that is locked then.
struct LocksAtExit {
  ~LocksAtExit() {
    const RankedLock lock(mutex);
    const RankedLock inner(second);
  }
  RankedMutex mutex{LockRank::kShard};
  RankedMutex second{LockRank::kHeap};
};

TEST(RankedMutex, IsLockedByStaticObjectsWhenTheProcessExits) {
  EXPECT_EXIT(
      {
        static LocksAtExit late;
        { const RankedLock lock(late.mutex); }
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

} // namespace
} // namespace stillwake
