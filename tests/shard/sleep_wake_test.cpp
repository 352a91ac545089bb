// SPDX-License-Identifier: Apache-2.0
// What a sleep and a wake owe: the same addresses, the same bytes, free memory in between.
#include "tests/shard/shard_fixture.h"

namespace stillwake {
namespace {

TEST_F(ShardTest, WakesAtTheSameAddressesWithTheSameBytes) {
  Shard shard = make_shard();
  const std::vector<Bytes> sizes = {Bytes(1), Bytes(513), kMiB * 3, kMiB * 2, kKiB * 100, kMiB * 40 + Bytes(7)};
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    blocks.push_back(allocate(shard, sizes[i] + Bytes(8)));
    fill(blocks[i], i, sizes[i]);
  }
  const Bytes free_before = free_memory();
  auto slept = sleep({&shard});
  ASSERT_OK(slept);
  EXPECT_EQ(shard.state(), ShardState::kAsleep);
  EXPECT_EQ(slept->shards_moved, 1u);
  EXPECT_EQ(shard.stats().mapped, Bytes(0));
  expect_free_at_least(free_before + slept->freed);
  auto woken = wake({&shard});
  ASSERT_OK(woken);
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  EXPECT_TRUE(woken->verified);
  EXPECT_EQ(woken->copied, slept->copied);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(holds(blocks[i], i, sizes[i]));
  }
  shard.core().check_invariants();
}

TEST_F(ShardTest, AllocatingWhileAsleepIsAnErrorAtOnce) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB);
  ASSERT_OK(sleep({&shard}));
  EXPECT_CODE(shard.allocate(kMiB), ErrorCode::kAsleep);
  ASSERT_OK(wake({&shard}));
  EXPECT_OK(shard.free(block, nullptr));
}

TEST_F(ShardTest, FreedMemoryGoesBackToTheDeviceAtTheNextSleepAndNotBefore) {
  Shard shard = make_shard();
  void* kept = allocate(shard, kMiB * 2);
  fill(kept, 1, kMiB * 2);
  void* freed = allocate(shard, kMiB * 64);
  const Bytes mapped = shard.stats().mapped;
  const Bytes free = free_memory();
  ASSERT_OK(shard.free(freed, nullptr));
  ASSERT_OK(shard.trim());
  EXPECT_EQ(shard.stats().mapped, mapped);
  EXPECT_EQ(free_memory(), free);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_EQ(shard.stats().mapped, kMiB * 2);
  expect_free_at_least(free + kMiB * 64);
  EXPECT_TRUE(holds(kept, 1, kMiB * 2));
}

TEST_F(ShardTest, SwapMovesTwoSetsWithinTheLargerOne) {
  Shard a = make_shard("a");
  Shard b = make_shard("b");
  void* in_a = allocate(a, kMiB * 200);
  fill(in_a, 1, kMiB * 200);
  ASSERT_OK(sleep({&a}));
  void* in_b = allocate(b, kMiB * 260);
  fill(in_b, 2, kMiB * 260);
  for (int turn = 0; turn < 3; ++turn) {
    auto swapped = turn % 2 == 0 ? swap({&b}, {&a}) : swap({&a}, {&b});
    ASSERT_OK(swapped);
    EXPECT_TRUE(swapped->verified);
    EXPECT_EQ(turn % 2 == 0 ? a.state() : b.state(), ShardState::kAwake);
    EXPECT_EQ(turn % 2 == 0 ? b.state() : a.state(), ShardState::kAsleep);
    if (turn % 2 == 0) {
      EXPECT_TRUE(holds(in_a, 1, kMiB * 200));
    } else {
      EXPECT_TRUE(holds(in_b, 2, kMiB * 260));
    }
  }
}

} // namespace
} // namespace stillwake
