// SPDX-License-Identifier: Apache-2.0
// Swaps whose roll-back fails too: exactly the shards whose content is not proven are corrupted.
#include "tests/shard/swap_fixture.h"

#include <cstring>

namespace stillwake {
namespace {

class SwapRollBack : public SwapTest {
protected:
  void SetUp() override {
    open(1, kMiB * 128);
    // The third stays whole whenever the swap stops before its turn.
    for (Side& side : leaving_) {
      side.shard.emplace(make_shard("leaving " + std::to_string(&side - leaving_)));
    }
    in_.shard.emplace(make_shard("incoming"));
    add(in_, kMiB * 6);
    add(in_, kMiB * 18);
    ASSERT_OK(sleep({&*in_.shard}));
    for (Side& side : leaving_) {
      add(side, kMiB * 8);
    }
  }
  void TearDown() override {
    for (Side& side : leaving_) {
      side.shard.reset();
    }
    SwapTest::TearDown();
  }
  Result<Report> swap_all() {
    return swap({&*leaving_[0].shard, &*leaving_[1].shard, &*leaving_[2].shard}, {&*in_.shard});
  }
  /// Without memory beyond what leaves, each page that comes in needs one that has left.
  std::vector<Physical> no_margin() { return neighbour_leaving(Pages(0)); }

  Side leaving_[3];
};

TEST_F(SwapRollBack, ExactlyTheShardsThatAreNotProvenAreCorrupted) {
  // The first copy in that fails ends the swap, a later one the roll-back of one shard or another.
  int corrupted[3] = {0, 0, 0}, whole_beside_corrupted = 0;
  for (std::uint64_t first = 1; first <= 2; ++first) {
    for (std::uint64_t second = first + 1; second <= first + 4; ++second) {
      SCOPED_TRACE(std::to_string(first) + ", " + std::to_string(second));
      if (!leaving_[0].shard) {
        SetUp();
      }
      auto neighbour = no_margin();
      gate().arm({Fault{CallId::cuMemcpyHtoDAsync, first, CUDA_ERROR_UNKNOWN, false},
                  Fault{CallId::cuMemcpyHtoDAsync, second, CUDA_ERROR_UNKNOWN, false}});
      auto swapped = swap_all();
      heal();
      ASSERT_FALSE(swapped);
      EXPECT_EQ(in_.shard->state(), ShardState::kAsleep);
      int bad = 0;
      for (int i = 0; i < 3; ++i) {
        const bool is_bad = leaving_[i].shard->state() == ShardState::kCorrupted;
        bad += is_bad ? 1 : 0;
        corrupted[i] += is_bad ? 1 : 0;
        const std::string name = "'leaving " + std::to_string(i) + "'";
        EXPECT_EQ(swapped.error().message.find(name) != std::string::npos, is_bad) << swapped.error().message;
        if (!is_bad) {
          EXPECT_EQ(leaving_[i].shard->state(), ShardState::kAwake);
          EXPECT_TRUE(is_exact(leaving_[i])) << name;
          leaving_[i].shard->core().check_invariants();
        } else {
          EXPECT_CODE(sleep({&*leaving_[i].shard}), ErrorCode::kCorrupted);
          EXPECT_EQ(leaving_[i].shard->stats().host_pinned, kMiB * 8) << "the backing is kept";
          EXPECT_OK(leaving_[i].shard->free(leaving_[i].blocks[0].at));
        }
      }
      EXPECT_EQ(swapped.error().code == ErrorCode::kCorrupted, bad > 0) << swapped.error().describe();
      EXPECT_LE(bad, 1) << "one call failed";
      whole_beside_corrupted += bad == 1 ? 1 : 0;
      neighbour.clear();
      for (Side& side : leaving_) {
        if (side.shard->state() == ShardState::kAwake) {
          EXPECT_OK(side.shard->free(allocate(*side.shard, kMiB)));
        }
      }
      ASSERT_OK(wake({&*in_.shard})); // what was to come in is not harmed
      EXPECT_TRUE(is_exact(in_));
      for (Side* side : {&leaving_[0], &leaving_[1], &leaving_[2], &in_}) {
        side->shard.reset();
        side->blocks.clear();
      }
    }
  }
  EXPECT_GT(whole_beside_corrupted, 0) << "no roll-back failed: this test proves nothing";
  EXPECT_GT(corrupted[0] + corrupted[1], 0);
  EXPECT_EQ(corrupted[2], 0) << "it had not left";
}

TEST_F(SwapRollBack, ShardsThatHadNotLeftAreWholeWhateverFails) {
  // From the first on every copy in fails: none that left can be put back.
  auto neighbour = no_margin();
  fail(CallId::cuMemcpyHtoDAsync, 1, CUDA_ERROR_UNKNOWN, true);
  auto swapped = swap_all();
  heal();
  EXPECT_CODE(swapped, ErrorCode::kCorrupted);
  EXPECT_EQ(leaving_[0].shard->state(), ShardState::kCorrupted);
  for (int i : {1, 2}) {
    EXPECT_EQ(leaving_[i].shard->state(), ShardState::kAwake);
    EXPECT_TRUE(is_exact(leaving_[i]));
  }
  neighbour.clear();
  ASSERT_OK(sleep({&*leaving_[1].shard, &*leaving_[2].shard}));
  ASSERT_OK(wake({&*leaving_[1].shard, &*in_.shard}));
  EXPECT_TRUE(is_exact(leaving_[1]));
  EXPECT_TRUE(is_exact(in_));
}

TEST_F(SwapRollBack, HandlesThatCannotBeReleasedCorruptNothing) {
  // There is a margin, which a roll-back gives back.
  gate().arm({Fault{CallId::cuMemcpyHtoDAsync, 1, CUDA_ERROR_UNKNOWN, false},
              Fault{CallId::cuMemRelease, 1, CUDA_ERROR_UNKNOWN, true}});
  auto swapped = swap_all();
  heal();
  EXPECT_CODE(swapped, ErrorCode::kDriverCallFailed);
  for (Side& side : leaving_) {
    EXPECT_EQ(side.shard->state(), ShardState::kAwake);
    EXPECT_TRUE(is_exact(side));
  }
  ASSERT_OK(swap_all()); // which tries to release them again
  EXPECT_TRUE(is_exact(in_));
}

TEST_F(SwapRollBack, ADiscardShardKeepsWhatHadNotLeftAndHasZerosForWhatHad) {
  Side& scratch = leaving_[1];
  scratch.shard.reset();
  scratch.blocks.clear();
  scratch.shard.emplace(make_shard("leaving 1", Policy::kDiscard));
  add(scratch, kMiB * 8);
  for (const bool has_left : {false, true}) {
    SCOPED_TRACE(has_left);
    auto neighbour = no_margin();
    // A copy out fails when the scratch has left; or in comes a copy that fails before.
    if (has_left) {
      fail(CallId::cuMemcpyHtoDAsync, 3);
    } else {
      fail(CallId::cuMemcpyHtoDAsync, 1);
    }
    const std::uint64_t unmapped = gate().calls(CallId::cuMemUnmap);
    EXPECT_CODE(swap_all(), ErrorCode::kDriverCallFailed);
    heal();
    EXPECT_GT(gate().calls(CallId::cuMemUnmap), unmapped);
    EXPECT_EQ(scratch.shard->state(), ShardState::kAwake);
    const auto held = has_left ? is_zero(scratch.blocks[0].at, scratch.blocks[0].size) : is_exact(scratch);
    EXPECT_TRUE(held);
    EXPECT_TRUE(is_exact(leaving_[0]));
    EXPECT_TRUE(is_exact(leaving_[2]));
  }
}

TEST_F(SwapRollBack, PagesThatStayedBehindTheirAddressesComeInFromTheBacking) {
  // An unmap that fails leaves pages behind a sleeping shard; the host then writes its copy of them.
  ShardOptions options;
  options.name = "stuck";
  options.host_copy = HostCopy::kReadable;
  in_.shard.reset();
  in_.blocks.clear();
  in_.shard.emplace(make_shard(options));
  add(in_, kMiB * 6);
  fail(CallId::cuMemUnmap, 2, CUDA_ERROR_UNKNOWN, true);
  ShardOptions first;
  first.name = "first";
  Shard goes = make_shard(first);
  allocate(goes, kMiB * 2);
  auto slept = sleep({&goes, &*in_.shard});
  heal();
  ASSERT_OK(slept);
  ASSERT_GT(slept->not_freed, Bytes(0));
  const auto fresh = content(77, kMiB * 6);
  auto* block = static_cast<std::byte*>(in_.blocks[0].at);
  std::memcpy(*in_.shard->host_address(block), fresh.data(), (kMiB * 6).size());
  ASSERT_OK(in_.shard->mark_host_dirty(block, kMiB * 6));
  ASSERT_OK(swap_all());
  EXPECT_TRUE(holds(block, 77, kMiB * 6));
}

} // namespace
} // namespace stillwake
