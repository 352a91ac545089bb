// SPDX-License-Identifier: Apache-2.0
// Shards that end in any state. The fixture's end checks that nothing of them is left.
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

constexpr Bytes kSize = kMiB * 8;

class Destroy : public ShardWork {
protected:
  std::size_t logged(const std::string& text) {
    const std::lock_guard<std::mutex> lock(log_mutex_);
    return static_cast<std::size_t>(std::count_if(
        log_.begin(), log_.end(), [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
  /// What a shard held is free again.
  void expect_all_given_back(Bytes free) {
    expect_free_at_least(free);
    EXPECT_EQ(host_pinned(*driver_), Bytes(0));
  }
};

TEST_F(Destroy, WithLiveBlocksThatAreToldOf) {
  { Shard opens_the_engine = make_shard("first"); }
  const Bytes free = free_memory();
  {
    Shard shard = make_shard("leaky");
    allocate(shard, kSize);
    allocate(shard, kSize);
  }
  EXPECT_EQ(logged("'leaky' is destroyed with 2 live blocks of " + readable(kSize * 2)), 1u);
  {
    Shard shard = make_shard("tidy");
    ASSERT_OK(shard.free(allocate(shard, kSize)));
  }
  EXPECT_EQ(logged("'tidy'"), 0u);
  expect_all_given_back(free);
}

TEST_F(Destroy, WithWorkInFlightThatIsWaitedFor) {
  OwnedStream stream = make_stream();
  StreamGate gate;
  std::optional<Shard> shard(make_shard());
  void* block = allocate(*shard, kSize);
  hold(gate, stream.get());
  queue_fill(block, kSize, 1, stream.get());
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gate.open();
  });
  shard.reset();
  opener.join();
  EXPECT_OK(stream.synchronize()); // the memory was there to the end
}

TEST_F(Destroy, Asleep) {
  { Shard opens_the_engine = make_shard("first"); }
  const Bytes free = free_memory();
  {
    Shard shard = make_shard();
    allocate(shard, kSize);
    ASSERT_OK(sleep({&shard}));
    EXPECT_EQ(host_pinned(*driver_), kSize);
  }
  expect_all_given_back(free);
}

TEST_F(Destroy, Waking) {
  std::optional<Ticket> ticket;
  {
    Shard shard = make_shard();
    fill(allocate(shard, kSize), 1, kSize);
    ASSERT_OK(sleep({&shard}));
    if (emulated()) {
      emulation().set_bandwidth(kMiB * 64);
    }
    auto waking = wake({&shard}, {nullptr});
    ASSERT_OK(waking);
    ticket = *waking;
  }
  EXPECT_OK(ticket->result());
  EXPECT_EQ(host_pinned(*driver_), Bytes(0));
}

TEST_F(Destroy, WakingWithNobodyWhoHoldsATicket) {
  Shard shard = make_shard();
  fill(allocate(shard, kSize), 1, kSize);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}, {nullptr}));
}

TEST_F(Destroy, OneOfASetThatIsWaking) {
  Shard stays = make_shard("stays");
  void* block = allocate(stays, kSize);
  fill(block, 1, kSize);
  {
    Shard goes = make_shard("goes");
    fill(allocate(goes, kSize), 2, kSize);
    ASSERT_OK(sleep({&stays, &goes}));
    if (emulated()) {
      emulation().set_bandwidth(kMiB * 64);
    }
    ASSERT_OK(wake({&goes, &stays}, std::vector<Stream>()));
  }
  ASSERT_OK(wake({&stays})); // waits, if there is anything to wait for
  EXPECT_TRUE(holds(block, 1, kSize));
}

TEST_F(Destroy, CorruptedAndWithMemoryThatWouldNotGo) {
  ShardOptions options;
  options.name = "damaged";
  options.host_copy = HostCopy::kReadable;
  Shard damaged = make_shard(options);
  void* block = allocate(damaged, kSize);
  ASSERT_OK(sleep({&damaged}));
  **damaged.host_address(block) ^= std::byte{1};
  EXPECT_CODE(wake({&damaged}), ErrorCode::kCorrupted);

  Shard first = make_shard("first");
  Shard stuck = make_shard("stuck");
  allocate(first, kSize);
  allocate(stuck, kSize);
  fail(CallId::cuMemUnmap, 2, CUDA_ERROR_UNKNOWN, true);
  auto slept = sleep({&first, &stuck});
  heal();
  ASSERT_OK(slept);
  EXPECT_EQ(slept->not_freed, kSize);
  fail(CallId::cuMemRelease, 1, CUDA_ERROR_UNKNOWN);
  Shard unreleased = make_shard("unreleased");
  allocate(unreleased, kSize);
  slept = sleep({&unreleased});
  heal();
  ASSERT_OK(slept);
  EXPECT_GT(slept->not_freed, Bytes(0));
}

TEST_F(Destroy, WhileAnotherThreadCommitsItsTransition) {
  std::optional<Shard> shard(make_shard());
  allocate(*shard, kSize);
  auto staged = stage_sleep({&*shard});
  ASSERT_OK(staged);
  std::thread committer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_OK(staged->commit());
  });
  shard.reset(); // waits for it
  committer.join();
}

TEST_F(Destroy, AMovedShardIsTheSame) {
  Shard shard = make_shard();
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  ASSERT_OK(sleep({&shard}));
  Shard moved = std::move(shard);
  ASSERT_OK(wake(*driver_));
  EXPECT_EQ(moved.state(), ShardState::kAwake);
  EXPECT_TRUE(holds(block, 1, kSize));
  moved = make_shard("replacement"); // ends the first one
  EXPECT_EQ(moved.name(), "replacement");
  EXPECT_EQ(moved.stats().blocks, 0u);
}

} // namespace
} // namespace stillwake
