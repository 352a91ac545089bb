// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/pinning_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>

namespace stillwake {
namespace {

/// Writes its letter into a common line for each unit. The first unit waits for `opened`.
class Letters final : public PinningWork {
public:
  Letters(char letter, int units, std::string& line, std::mutex& mutex)
      : letter_(letter), left_(units), line_(line), mutex_(mutex) {}

  bool step() override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (left_ == 0) {
      done_.notify_all();
      return false;
    }
    --left_;
    line_ += letter_;
    entered_ = true;
    done_.notify_all();
    done_.wait(lock, [this] { return open_; });
    return true;
  }
  void wait_until_entered() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return entered_; });
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    done_.notify_all();
  }
  void wait_until_empty() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return left_ == 0; });
  }

private:
  const char letter_;
  int left_;
  std::string& line_;
  std::mutex& mutex_;
  std::condition_variable done_;
  bool entered_ = false;
  bool open_ = false;
};

class CountedUnits final : public PinningWork {
public:
  explicit CountedUnits(int units) : units_(units) {}
  bool step() override {
    const int unit = next_++;
    if (unit >= units_) {
      return false;
    }
    ++done;
    return true;
  }
  std::atomic<int> done{0};

private:
  const int units_;
  std::atomic<int> next_{0};
};

TEST(PinningWorkers, WithOneThreadTheCallerDoesIt) {
  PinningWorkers workers(1);
  CountedUnits work(3);
  EXPECT_FALSE(workers.submit(work));
  workers.withdraw(work);
  EXPECT_EQ(work.done, 0);
}

TEST(PinningWorkers, WithdrawReturnsWhenNobodyIsInside) {
  PinningWorkers workers(4);
  for (int round = 0; round < 200; ++round) {
    CountedUnits work(round % 7); // dies at the end of the round, inside or not
    EXPECT_TRUE(workers.submit(work));
    workers.withdraw(work);
    EXPECT_LE(work.done, round % 7);
  }
}

TEST(PinningWorkers, ServesSeveralWorksInTurn) {
  std::mutex mutex;
  std::string line;
  PinningWorkers workers(2);
  Letters blocker('x', 1, line, mutex); // keeps one of the two threads, so that the other's order is seen
  Letters a('a', 3, line, mutex);
  Letters b('b', 3, line, mutex);
  ASSERT_TRUE(workers.submit(blocker));
  blocker.wait_until_entered();
  ASSERT_TRUE(workers.submit(a));
  a.wait_until_entered();
  ASSERT_TRUE(workers.submit(b));
  b.open();
  a.open();
  a.wait_until_empty();
  b.wait_until_empty();
  blocker.open();
  workers.withdraw(a);
  workers.withdraw(b);
  workers.withdraw(blocker);
  EXPECT_EQ(line, "xaababb");
}

TEST(PinningWorkers, FewerThreadsNeverStrandARunningWork) {
  std::mutex mutex;
  std::string line;
  PinningWorkers workers(2);
  Letters work('a', 50, line, mutex);
  ASSERT_TRUE(workers.submit(work));
  work.wait_until_entered();
  workers.set_count(1);
  CountedUnits other(2);
  EXPECT_FALSE(workers.submit(other));
  work.open();
  work.wait_until_empty();
  workers.withdraw(work);
  EXPECT_EQ(line.size(), 50u);
}

} // namespace
} // namespace stillwake
