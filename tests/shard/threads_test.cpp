// SPDX-License-Identifier: Apache-2.0
// Several threads: one transition a shard at a time, and nobody who minds his own shard notices another's.
#include "tests/shard/stream_work.h"

#include <atomic>
#include <barrier>

namespace stillwake {
namespace {

class Threads : public ShardWork {
protected:
  /// Runs both at once; what each answered.
  template <class First, class Second> std::pair<bool, bool> race(First first, Second second) {
    std::barrier start(2);
    bool one = false, two = false;
    std::thread other([&] {
      start.arrive_and_wait();
      two = outcome(second());
    });
    start.arrive_and_wait();
    one = outcome(first());
    other.join();
    return {one, two};
  }
  template <class T> static bool outcome(const Result<T>& result) {
    EXPECT_TRUE(result || result.error().code == ErrorCode::kBusy) << result.error().describe();
    return result.has_value();
  }
};

TEST_F(Threads, OfTwoTransitionsOfOneShardOneWinsAndTheOtherIsToldBusy) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 4);
  fill(block, 1, kMiB * 4);
  for (int turn = 0; turn < 20; ++turn) {
    // Of two that go the same way the later one may find nothing left to do.
    auto [slept, slept_too] = race([&] { return sleep({&shard}); }, [&] { return sleep({&shard}); });
    EXPECT_TRUE(slept || slept_too);
    EXPECT_EQ(shard.state(), ShardState::kAsleep);
    auto [woke, woke_too] = race([&] { return wake({&shard}); }, [&] { return wake({&shard}); });
    EXPECT_TRUE(woke || woke_too);
    EXPECT_EQ(shard.state(), ShardState::kAwake);
    EXPECT_EQ(shard.stats().sleeps, static_cast<std::uint64_t>(turn) + 1);
    EXPECT_EQ(shard.stats().wakes, static_cast<std::uint64_t>(turn) + 1);
  }
  EXPECT_TRUE(holds(block, 1, kMiB * 4));
  shard.core().check_invariants();
}

TEST_F(Threads, WhileATransitionIsStagedEveryOtherIsBusy) {
  Shard shard = make_shard();
  Shard other = make_shard("other");
  allocate(shard, kMiB);
  void* in_other = allocate(other, kMiB);
  fill(in_other, 2, kMiB);
  auto staged = stage_sleep({&shard});
  ASSERT_OK(staged);
  std::thread([&] {
    EXPECT_CODE(sleep({&shard}), ErrorCode::kBusy);
    EXPECT_CODE(sleep({&other, &shard}), ErrorCode::kBusy); // and `other` is let go again
    EXPECT_EQ(other.state(), ShardState::kAwake);
    EXPECT_OK(sleep({&other}));
    EXPECT_OK(wake({&other}));
  }).join();
  ASSERT_OK(staged->commit());
  EXPECT_TRUE(holds(in_other, 2, kMiB));
}

TEST_F(Threads, OneThatSeesAShardAwakeMayPutItToSleepAtOnce) {
  ShardOptions options;
  options.name = "released";
  options.backing = Backing::kRelease; // the end of its wake takes a moment: everything is unpinned
  Shard shard = make_shard(options);
  for (int i = 0; i < 12; ++i) {
    fill(allocate(shard, kMiB * 4), i, kMiB * 4);
  }
  for (int turn = 0; turn < 10; ++turn) {
    ASSERT_OK(sleep({&shard}));
    auto ticket = wake({&shard}, std::vector<Stream>());
    ASSERT_OK(ticket);
    std::thread asker([&] { EXPECT_OK(ticket->result()); });
    while (shard.state() != ShardState::kAwake) {}
    EXPECT_OK(stage_sleep({&shard}));
    asker.join();
  }
}

TEST_F(Threads, ShardsOfDifferentThreadsSleepAndWakeWithoutNoticingEachOther) {
  constexpr int kThreads = 4;
  std::vector<Shard> shards;
  for (int i = 0; i < kThreads; ++i) {
    shards.push_back(make_shard("thread " + std::to_string(i)));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i, &shards] {
      void* block = allocate(shards[i], kMiB * 3);
      for (int turn = 0; turn < 5; ++turn) {
        fill(block, 10 * i + turn, kMiB * 3);
        ASSERT_OK(sleep({&shards[i]}));
        ASSERT_OK(wake({&shards[i]}));
        ASSERT_TRUE(holds(block, 10 * i + turn, kMiB * 3));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(Threads, FourThreadsAllocateAndFreeWhileOtherShardsSleepAndWake) {
  Shard busy = make_shard("busy");
  Shard resting = make_shard("resting");
  void* kept = allocate(resting, kMiB * 6);
  fill(kept, 1, kMiB * 6);
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> pairs{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i, &busy, &over, &pairs] {
      OwnedStream stream = make_stream();
      for (std::uint64_t n = 0; !over; ++n) {
        auto block = busy.allocate(Bytes(512 * (1 + (n * 7 + i) % 3000)), stream.get());
        ASSERT_OK(block);
        queue_fill(*block, Bytes(512), static_cast<unsigned char>(i), stream.get());
        ASSERT_OK(n % 5 == 0 ? busy.free(*block) : busy.free(*block, stream.get()));
        ++pairs;
      }
    });
  }
  for (int turn = 0; turn < 10; ++turn) {
    EXPECT_OK(sleep({&resting}));
    EXPECT_OK(wake({&resting}));
  }
  over = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GT(pairs.load(), 100u);
  EXPECT_TRUE(holds(kept, 1, kMiB * 6));
  busy.core().check_invariants();
}

TEST_F(Threads, FreesFromOtherThreadsInTheMiddleOfTransitionsAreAllCarriedOut) {
  Shard shard = make_shard();
  void* kept = allocate(shard, kMiB * 2);
  fill(kept, 1, kMiB * 2);
  std::vector<void*> doomed;
  for (int i = 0; i < 400; ++i) {
    doomed.push_back(allocate(shard, kKiB * 16));
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t n = i; n < doomed.size(); n += 4) {
        EXPECT_OK(n % 3 == 0 ? shard.free(doomed[n]) : shard.free(doomed[n], nullptr));
        std::this_thread::yield();
      }
    });
  }
  for (int turn = 0; turn < 5; ++turn) {
    EXPECT_OK(sleep({&shard}));
    EXPECT_OK(wake({&shard}));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_EQ(shard.stats().blocks, 1u);
  EXPECT_EQ(shard.stats().queued_frees, 0u);
  EXPECT_EQ(shard.stats().mapped, kMiB * 2);
  EXPECT_TRUE(holds(kept, 1, kMiB * 2));
  shard.core().check_invariants();
}

TEST_F(Threads, ATicketMayBeAskedByManyThreads) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 8);
  fill(block, 1, kMiB * 8);
  for (int turn = 0; turn < 5; ++turn) {
    ASSERT_OK(sleep({&shard}));
    auto ticket = wake({&shard}, std::vector<Stream>());
    ASSERT_OK(ticket);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([this, i, block, copy = *ticket, &shard]() mutable {
        OwnedStream stream = make_stream();
        EXPECT_OK(i % 2 == 0 ? copy.wait(stream.get()) : copy.wait(stream.get(), block, kMiB));
        (void)copy.is_done();
        (void)shard.state();
        auto verdict = copy.result();
        ASSERT_OK(verdict);
        EXPECT_EQ(verdict->copied, kMiB * 8);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

} // namespace
} // namespace stillwake
