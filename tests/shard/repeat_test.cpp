// SPDX-License-Identifier: Apache-2.0
// Transitions asked for again: of what sleeps already, of what never slept, of one of several, after frees.
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

class Repeat : public ShardWork {};

TEST_F(Repeat, FR_B2_SleepingTwiceAndWakingTwiceAreNoOpsAndSaySo) {
  Shard shard = make_shard();
  Shard other = make_shard("other");
  void* block = allocate(shard, kMiB * 3);
  void* in_other = allocate(other, kMiB * 3);
  fill(block, 1, kMiB * 3);
  fill(in_other, 2, kMiB * 3);
  const ShardStats before = other.stats();

  auto never_slept = wake({&shard});
  ASSERT_OK(never_slept);
  EXPECT_TRUE(never_slept->is_no_op());
  EXPECT_NE(never_slept->line().find("nothing to do"), std::string::npos) << never_slept->line();

  auto first = sleep({&shard});
  ASSERT_OK(first);
  EXPECT_FALSE(first->is_no_op());
  auto second = sleep({&shard});
  ASSERT_OK(second);
  EXPECT_TRUE(second->is_no_op());
  EXPECT_EQ(second->shards, 1u);
  EXPECT_EQ(second->copied, Bytes(0));
  EXPECT_EQ(second->freed, Bytes(0));
  EXPECT_EQ(shard.stats().sleeps, 1u);

  ASSERT_OK(wake({&shard}));
  auto again = wake({&shard});
  ASSERT_OK(again);
  EXPECT_TRUE(again->is_no_op());
  EXPECT_EQ(again->mapped, Bytes(0));
  EXPECT_EQ(shard.stats().wakes, 1u);
  EXPECT_TRUE(holds(block, 1, kMiB * 3));

  EXPECT_EQ(other.state(), ShardState::kAwake);
  EXPECT_EQ(other.stats().sleeps, before.sleeps);
  EXPECT_EQ(other.stats().handles, before.handles);
  EXPECT_EQ(other.stats().host_pinned, before.host_pinned);
  EXPECT_TRUE(holds(in_other, 2, kMiB * 3));
}

TEST_F(Repeat, FR_B2_OneOfSeveralWakesAndTheRestStaysAsleep) {
  std::vector<Shard> shards;
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) {
    shards.push_back(make_shard("layer" + std::to_string(i)));
    blocks.push_back(allocate(shards[i], kMiB * 2 + kKiB * 4));
    fill(blocks[i], i, kMiB * 2);
  }
  ASSERT_OK(sleep(*driver_));
  ASSERT_OK(wake({&shards[2]}));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(shards[i].state(), i == 2 ? ShardState::kAwake : ShardState::kAsleep);
    EXPECT_EQ(shards[i].stats().mapped, i == 2 ? Bytes(Pages(2)) : Bytes(0));
  }
  EXPECT_TRUE(holds(blocks[2], 2, kMiB * 2));
  // A set of both kinds: only what sleeps moves.
  auto mixed = wake({&shards[2], &shards[0]});
  ASSERT_OK(mixed);
  EXPECT_EQ(mixed->shards, 2u);
  EXPECT_EQ(mixed->shards_moved, 1u);
  auto all = sleep(*driver_);
  ASSERT_OK(all);
  EXPECT_EQ(all->shards, 4u);
  EXPECT_EQ(all->shards_moved, 2u);
  ASSERT_OK(wake(*driver_));
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(holds(blocks[i], i, kMiB * 2)) << i;
  }
}

TEST_F(Repeat, ADriverWithoutShardsSleepsAndWakesWithoutAnything) {
  auto slept = sleep(*driver_);
  ASSERT_OK(slept);
  EXPECT_TRUE(slept->is_no_op());
  ASSERT_OK(wake(*driver_));
}

TEST_F(Repeat, AShardWithoutBlocksSleepsAndWakes) {
  Shard empty = make_shard("empty");
  ASSERT_OK(sleep({&empty}));
  EXPECT_EQ(empty.state(), ShardState::kAsleep);
  auto woken = wake({&empty});
  ASSERT_OK(woken);
  EXPECT_EQ(woken->mapped, Bytes(0));
  EXPECT_EQ(empty.state(), ShardState::kAwake);
}

TEST_F(Repeat, FR_B3_TensorsFreedWhileAsleepStayGoneAndTheRestIsExact) {
  Shard shard = make_shard();
  OwnedStream stream = make_stream();
  constexpr Bytes kSize = kMiB * 4;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(allocate(shard, kSize, stream.get()));
    fill(blocks[i], i, kSize);
  }
  ASSERT_OK(sleep({&shard}));
  const Bytes pinned = shard.stats().host_pinned;
  for (int i = 0; i < 8; i += 2) {
    ASSERT_OK(i % 4 == 0 ? shard.free(blocks[i]) : shard.free(blocks[i], stream.get()));
    EXPECT_CODE(shard.free(blocks[i]), ErrorCode::kInvalidArgument); // nothing twice
  }
  const std::uint64_t created = gate().calls(CallId::cuMemCreate);
  auto woken = wake({&shard});
  ASSERT_OK(woken);
  EXPECT_EQ(shard.stats().blocks, 4u);
  EXPECT_EQ(woken->mapped, kSize * 4) << "pages of freed blocks are not taken again";
  EXPECT_EQ(woken->copied, kSize * 4);
  EXPECT_GT(gate().calls(CallId::cuMemCreate), created);
  for (int i = 1; i < 8; i += 2) {
    EXPECT_TRUE(holds(blocks[i], i, kSize)) << i;
  }
  EXPECT_LE(shard.stats().host_pinned, pinned - kSize * 4 + kPageBytes) << "backing of freed blocks is given back";
  // What came free can be had again, and the next cycle knows of it.
  void* again = allocate(shard, kSize * 3, stream.get());
  fill(again, 77, kSize * 3);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(again, 77, kSize * 3));
  for (int i = 1; i < 8; i += 2) {
    EXPECT_TRUE(holds(blocks[i], i, kSize)) << i;
  }
  shard.core().check_invariants();
}

TEST_F(Repeat, FR_B3_EverythingFreedWhileAsleepWakesToNothing) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 9);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(shard.free(block));
  auto woken = wake({&shard});
  ASSERT_OK(woken);
  EXPECT_EQ(woken->mapped, Bytes(0));
  EXPECT_EQ(shard.stats().blocks, 0u);
  EXPECT_EQ(shard.stats().mapped, Bytes(0));
  EXPECT_NE(allocate(shard, kMiB), nullptr);
}

} // namespace
} // namespace stillwake
