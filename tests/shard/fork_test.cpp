// SPDX-License-Identifier: Apache-2.0
// In a child made by fork every call says at once that the driver is lost, whoever held a lock in the parent.
#include "tests/base/forked_child.h"
#include "tests/shard/stream_work.h"

#include "shard/waking.h"

#include <atomic>
#include <thread>

namespace stillwake {
namespace {

constexpr Bytes kSize = kMiB * 6;

class Fork : public ShardWork {
protected:
  void SetUp() override {
    ShardWork::SetUp();
    if (!emulated()) {
      GTEST_SKIP() << "a process with a CUDA context is not forked";
    }
    if (!kCanFork) {
      GTEST_SKIP() << "the thread sanitizer has locks of its own, which a fork among threads leaves held";
    }
  }
  /// A shard whose one block, `block_` of kSize, holds a pattern.
  Shard make_filled() {
    Shard shard = make_shard();
    block_ = allocate(shard, kSize);
    fill(block_, 1, kSize);
    return shard;
  }
  template <class Answer> static bool is_lost(const Answer& answer) {
    return !answer && answer.error().code == ErrorCode::kLost;
  }

  void* block_ = nullptr;
};

TEST_F(Fork, AChildIsToldAtOnceWhoeverHeldALock) {
  Shard shard = make_shard("forked");
  void* block = allocate(shard, kMiB);
  std::atomic<bool> stop{false};
  std::thread transitions([&] {
    while (!stop) {
      (void)sleep({&shard});
      (void)wake({&shard});
    }
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(holds_in_child([&] {
      const bool all = is_lost(shard.allocate(kMiB)) && is_lost(shard.free(block)) && is_lost(shard.trim()) &&
                       is_lost(sleep({&shard})) && is_lost(wake(*driver_)) && shard.state() == ShardState::kLost;
      { const Shard gone = std::move(shard); }
      driver_.reset();
      return all;
    })) << "fork "
        << i;
  }
  stop = true;
  transitions.join();
  ASSERT_OK(wake({&shard}));
}

TEST_F(Fork, ATicketIsLostThoughAThreadWaitsInIt) {
  Shard shard = make_filled();
  ASSERT_OK(sleep({&shard}));
  auto ticket = wake({&shard}, std::vector<Stream>());
  ASSERT_OK(ticket);
  {
    const auto held = shard.core().waking();
    ASSERT_NE(held, nullptr);
    const RankedLock lock = held->lock(); // as whoever waits for the verdict holds it
    EXPECT_TRUE(holds_in_child([&] { return is_lost(ticket->wait(nullptr)); }));
    EXPECT_TRUE(holds_in_child([&] { return is_lost(ticket->wait(nullptr, block_, kMiB)); }));
    EXPECT_TRUE(holds_in_child([&] { return is_lost(ticket->result()); }));
    EXPECT_TRUE(holds_in_child([&] { return ticket->is_done(); })) << "nothing is there to wait for";
    EXPECT_TRUE(holds_in_child([&] {
      { const Ticket gone = std::move(*ticket); }
      return true;
    }));
  }
  ASSERT_OK(ticket->result());
  EXPECT_TRUE(holds_in_child([&] { return is_lost(ticket->wait(nullptr)) && is_lost(ticket->result()); }));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Fork, AStagedSleepIsTheParentsAlone) {
  Shard shard = make_filled();
  auto staged = stage_sleep({&shard});
  ASSERT_OK(staged);
  EXPECT_TRUE(holds_in_child([&] { return is_lost(staged->commit()); }));
  EXPECT_TRUE(holds_in_child([&] {
    staged->abandon();
    { const StagedSleep gone = std::move(*staged); }
    // What the child was asked to do was not done to its copy either.
    return shard.core().stored_state() == ShardState::kStagedSleep;
  }));
  EXPECT_EQ(shard.state(), ShardState::kStagedSleep);
  EXPECT_TRUE(holds(block_, 1, kSize));
  ASSERT_OK(staged->commit());
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Fork, AStagedWakeIsTheParentsAlone) {
  Shard shard = make_filled();
  ASSERT_OK(sleep({&shard}));
  auto staged = stage_wake({&shard});
  ASSERT_OK(staged);
  EXPECT_TRUE(holds_in_child([&] { return is_lost(staged->commit()); }));
  EXPECT_TRUE(holds_in_child([&] {
    staged->abandon();
    { const StagedWake gone = std::move(*staged); }
    return shard.core().stored_state() == ShardState::kStagedWake;
  }));
  EXPECT_EQ(shard.state(), ShardState::kStagedWake);
  auto ticket = staged->commit();
  ASSERT_OK(ticket);
  ASSERT_OK(ticket->result());
  EXPECT_TRUE(holds(block_, 1, kSize));
}

TEST_F(Fork, EveryOtherCallIsLostToo) {
  ShardOptions options;
  options.name = "readable";
  options.host_copy = HostCopy::kReadable;
  Shard shard = make_shard(options);
  Shard other = make_shard("other");
  void* block = allocate(shard, kSize);
  allocate(other, kMiB);
  ASSERT_OK(sleep({&shard}));
  ASSERT_GT(host_pinned(*driver_), Bytes(0));
  const ShardSet set{&shard};
  const auto lost_transitions = [&] {
    return is_lost(sleep(*driver_)) && is_lost(wake(set)) && is_lost(wake(set, std::vector<Stream>())) &&
           is_lost(swap({&other}, set)) && is_lost(stage_sleep(set)) && is_lost(stage_wake(set));
  };
  EXPECT_TRUE(holds_in_child(lost_transitions));
  EXPECT_TRUE(holds_in_child([&] {
    return is_lost(shard.free(block, nullptr)) && is_lost(shard.prepare()) &&
           is_lost(shard.prepare(Shard::Prepare::kBackground)) && is_lost(shard.host_address(block)) &&
           is_lost(shard.mark_host_dirty(block, kMiB)) && shard.stats().blocks == 0 && shard.contains(block);
  }));
  EXPECT_TRUE(holds_in_child([&] {
    set_host_budget(*driver_, kMiB);
    return is_lost(set_pinning_threads(*driver_, 1)) && host_pinned(*driver_) == Bytes(0);
  }));
  EXPECT_TRUE(holds_in_child([&] {
    return is_lost(driver_->memory(DeviceIndex(0))) && is_lost(driver_->device(DeviceIndex(0))) &&
           is_lost(Shard::create(*driver_, ShardOptions())) && is_lost(Driver::open());
  }));
  ASSERT_OK(wake({&shard}));
}

} // namespace
} // namespace stillwake
