// SPDX-License-Identifier: Apache-2.0
// A SwapTest has two sets that take turns on one device.
#pragma once

#include "tests/shard/stream_work.h"

namespace stillwake {

class SwapTest : public ShardWork {
protected:
  struct Side {
    std::optional<Shard> shard;
    struct Block {
      void* at;
      std::uint64_t seed;
      Bytes size;
    };
    std::vector<Block> blocks;
  };

  void TearDown() override {
    for (Side* side : {&in_, &out_}) {
      side->shard.reset();
      side->blocks.clear();
    }
    ShardWork::TearDown();
  }
  void add(Side& side, Bytes size, BlockKind kind = BlockKind::kShared) {
    void* at = allocate(*side.shard, size, nullptr, kind);
    side.blocks.push_back({at, ++seeds_, size});
    fill(at, seeds_, size);
  }
  /// `out_` awake and `in_` asleep, each with blocks of these sizes.
  void set_up(const std::vector<Bytes>& out, const std::vector<Bytes>& in, Policy out_policy = Policy::kPreserve,
              Policy in_policy = Policy::kPreserve) {
    in_.shard.emplace(make_shard("incoming", in_policy));
    out_.shard.emplace(make_shard("outgoing", out_policy));
    for (Bytes size : in) {
      add(in_, size);
    }
    ASSERT_OK(sleep({&*in_.shard}));
    for (Bytes size : out) {
      add(out_, size);
    }
  }
  ::testing::AssertionResult is_exact(Side& side) {
    for (const Side::Block& block : side.blocks) {
      if (auto held = holds(block.at, block.seed, block.size); !held) {
        return held;
      }
    }
    return ::testing::AssertionSuccess();
  }
  void expect_put_back() {
    EXPECT_EQ(out_.shard->state(), ShardState::kAwake);
    EXPECT_EQ(in_.shard->state(), ShardState::kAsleep);
    EXPECT_TRUE(is_exact(out_));
    out_.shard->core().check_invariants();
  }

  Side out_, in_;
  std::uint64_t seeds_ = 0;
};

} // namespace stillwake
