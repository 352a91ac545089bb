// SPDX-License-Identifier: Apache-2.0
// What sleeps take of host memory: how much, when it is pinned, what happens when it is refused, and how it goes back.
#include "tests/shard/stream_work.h"

#include <atomic>
#include <fstream>

namespace stillwake {
namespace {

class HostMemory : public ShardWork {
protected:
  std::uint64_t pinning_calls() { return gate().calls(CallId::cuMemHostRegister); }
  /// The next launch reports no error that somebody else left.
  void expect_no_stale_error(void* block) {
    queue_fill(block, Bytes(512), 0x11, nullptr);
    synchronize();
  }
  static Bytes resident() {
    std::ifstream file("/proc/self/smaps_rollup");
    std::string word;
    while (file >> word) {
      if (word == "Private_Dirty:") { // the mirrors; the emulated device's memory is shared
        std::uint64_t kib = 0;
        file >> kib;
        return kKiB * kib;
      }
    }
    ADD_FAILURE() << "no figure of resident memory";
    return Bytes(0);
  }
};

TEST_F(HostMemory, FR_C5_OverBudgetIsACleanErrorAndEverythingIsAwake) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 16);
  fill(block, 1, kMiB * 16);
  set_host_budget(*driver_, kMiB * 4);
  auto slept = sleep({&shard});
  EXPECT_CODE(slept, ErrorCode::kOverBudget);
  EXPECT_NE(slept.error().message.find(readable(kMiB * 16)), std::string::npos) << slept.error().message;
  EXPECT_NE(slept.error().message.find(readable(kMiB * 4)), std::string::npos) << slept.error().message;
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  EXPECT_EQ(host_pinned(*driver_), Bytes(0));
  EXPECT_TRUE(holds(block, 1, kMiB * 16));
  expect_no_stale_error(block);
  EXPECT_OK(shard.allocate(kMiB));
  fill(block, 2, kMiB * 16);
  set_host_budget(*driver_, std::nullopt);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 2, kMiB * 16));
}

TEST_F(HostMemory, FR_C5_BackingKeptForAwakeShardsIsGivenUpFirst) {
  Shard idle = make_shard("idle");
  Shard shard = make_shard();
  void* in_idle = allocate(idle, kMiB * 12);
  void* block = allocate(shard, kMiB * 16);
  fill(in_idle, 1, kMiB * 12);
  fill(block, 2, kMiB * 16);
  ASSERT_OK(sleep({&idle}));
  ASSERT_OK(wake({&idle}));
  ASSERT_EQ(idle.stats().host_pinned, kMiB * 12);
  set_host_budget(*driver_, kMiB * 20);
  ASSERT_OK(sleep({&shard}));
  EXPECT_EQ(idle.stats().host_pinned, Bytes(0));
  EXPECT_CODE(sleep({&idle}), ErrorCode::kOverBudget); // what sleeps is never given up
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 2, kMiB * 16));
  ASSERT_OK(sleep({&idle}));
  ASSERT_OK(wake({&idle}));
  EXPECT_TRUE(holds(in_idle, 1, kMiB * 12));
}

TEST_F(HostMemory, FR_C5_ARegisterCallThatFailsIsACleanErrorAndEverythingIsAwake) {
  Shard shard = make_shard();
  constexpr Bytes kSize = kMiB * 100; // several pieces
  std::vector<void*> blocks;
  for (int i = 0; i < 50; ++i) {
    blocks.push_back(allocate(shard, kSize / 50));
    fill(blocks.back(), i, kSize / 50);
  }
  for (std::uint64_t nth : {1, 2}) {
    fail(CallId::cuMemHostRegister, nth, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_CODE(sleep({&shard}), ErrorCode::kOutOfHostMemory);
    EXPECT_EQ(gate().injected(), 1u);
    heal();
    EXPECT_EQ(shard.state(), ShardState::kAwake);
    EXPECT_EQ(host_pinned(*driver_), Bytes(0));
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(holds(blocks[i], i, kSize / 50)) << i;
    }
    void* extra = allocate(shard, kKiB);
    expect_no_stale_error(extra);
    EXPECT_OK(shard.free(extra, nullptr));
  }
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(holds(blocks[i], i, kSize / 50)) << i;
  }
}

// A piece that has to grow is unpinned first. When it cannot be pinned again its backing is gone, and nobody may take
// the page for unchanged because of an old digest.
TEST_F(HostMemory, FR_C2_BackingThatWasLostToAFailedPinningIsNeverTakenForUnchanged) {
  for (CallId call : {CallId::cuMemHostRegister, CallId::cuMemHostUnregister}) {
    for (std::uint64_t nth : {1, 2, 3}) {
      Shard shard = make_shard();
      void* first = allocate(shard, kMiB * 2);
      void* hole = allocate(shard, kMiB * 2);
      void* second = allocate(shard, kMiB * 2);
      fill(first, 1, kMiB * 2);
      fill(second, 2, kMiB * 2);
      ASSERT_OK(shard.free(hole, nullptr));
      ASSERT_OK(sleep({&shard}));
      ASSERT_OK(wake({&shard}));
      hole = allocate(shard, kMiB * 2); // joins the two runs to one
      fill(hole, 3, kMiB * 2);
      fail(call, nth, CUDA_ERROR_OUT_OF_MEMORY);
      const auto failed = sleep({&shard});
      const bool injected = gate().injected() > 0;
      heal();
      EXPECT_EQ(failed.has_value(), !injected);
      if (!failed) {
        EXPECT_EQ(shard.state(), ShardState::kAwake);
        shard.core().check_invariants();
        ASSERT_OK(sleep({&shard}));
      }
      ASSERT_OK(wake({&shard}));
      EXPECT_TRUE(holds(first, 1, kMiB * 2)) << to_string(call) << " " << nth;
      EXPECT_TRUE(holds(hole, 3, kMiB * 2)) << to_string(call) << " " << nth;
      EXPECT_TRUE(holds(second, 2, kMiB * 2)) << to_string(call) << " " << nth;
    }
  }
}

TEST_F(HostMemory, FR_D1_AfterPrepareNoSleepPins) {
  Shard shard = make_shard();
  constexpr Bytes kSize = kMiB * 24;
  auto* block = static_cast<std::byte*>(allocate(shard, kSize));
  fill(block, 1, kSize);
  ASSERT_OK(shard.prepare());
  EXPECT_EQ(shard.stats().host_pinned, kSize);
  const std::uint64_t prepared = pinning_calls();
  for (int cycle = 0; cycle < 3; ++cycle) {
    fill(block, cycle, kSize);
    auto slept = sleep({&shard});
    ASSERT_OK(slept);
    EXPECT_EQ(slept->copied, kSize);
    ASSERT_OK(wake({&shard}));
    EXPECT_TRUE(holds(block, cycle, kSize));
    EXPECT_EQ(pinning_calls(), prepared) << "cycle " << cycle;
  }
}

TEST_F(HostMemory, FR_D1_PagesOfZerosAreNoReasonToPinAnew) {
  Shard shard = make_shard();
  constexpr int kPages = 12;
  auto* block = static_cast<std::byte*>(allocate(shard, kPageBytes * kPages));
  ASSERT_OK(shard.prepare());
  const std::uint64_t prepared = pinning_calls();
  for (int cycle = 0; cycle < 3; ++cycle) {
    for (int page = 0; page < kPages; ++page) {
      std::byte* at = block + kPageBytes.size() * page;
      page % 2 == cycle % 2 ? queue_fill(at, kPageBytes, 0, nullptr) : fill(at, page, kPageBytes);
    }
    synchronize();
    auto slept = sleep({&shard});
    ASSERT_OK(slept);
    EXPECT_EQ(slept->zero, kPageBytes * (kPages / 2));
    EXPECT_EQ(slept->copied, kPageBytes * (kPages / 2));
    ASSERT_OK(wake({&shard}));
    EXPECT_EQ(pinning_calls(), prepared) << "cycle " << cycle;
    for (int page = 0; page < kPages; ++page) {
      std::byte* at = block + kPageBytes.size() * page;
      EXPECT_TRUE(page % 2 == cycle % 2 ? is_zero(at, kPageBytes) : holds(at, page, kPageBytes)) << page;
    }
  }
}

TEST_F(HostMemory, FR_D2_PinnedIsTheLivePagesAndOnePageAShardAtMost) {
  std::vector<Shard> shards;
  Bytes live;
  for (std::uint64_t mib : {5, 9, 33}) { // next to powers of two
    shards.push_back(make_shard("shard of " + std::to_string(mib)));
    fill(allocate(shards.back(), kMiB * mib), mib, kMiB * mib);
    live += Bytes(pages_holding(kMiB * mib));
  }
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> peak{0};
  std::thread watcher([&] {
    while (!over) {
      peak = std::max(peak.load(), host_pinned(*driver_).count());
    }
  });
  for (int cycle = 0; cycle < 2; ++cycle) {
    auto slept = sleep({&shards[0], &shards[1], &shards[2]});
    ASSERT_OK(slept);
    EXPECT_GE(slept->host_pinned, live);
    EXPECT_LE(slept->host_pinned, live + kPageBytes * shards.size());
    EXPECT_EQ(slept->host_pinned, host_pinned(*driver_));
    ASSERT_OK(wake(*driver_));
    for (Shard& shard : shards) { // runs grow: their pieces are pinned anew, not twice
      fill(allocate(shard, kMiB * 4), 1, kMiB * 4);
      live += cycle == 0 ? kMiB * 4 : Bytes(0);
    }
  }
  over = true;
  watcher.join();
  EXPECT_LE(peak.load(), (live + kPageBytes * shards.size()).count());
}

TEST_F(HostMemory, FR_D3_TrimAndReleaseGiveTheMemoryBackToTheSystem) {
  constexpr Bytes kSize = kMiB * 128;
  const auto cycle = [&](Shard& shard, void* block) {
    fill(block, 1, kSize);
    EXPECT_OK(sleep({&shard}));
    EXPECT_OK(wake({&shard}));
    EXPECT_TRUE(holds(block, 1, kSize));
  };
  ShardOptions options;
  options.name = "kept";
  {
    Shard kept = make_shard(options);
    void* block = allocate(kept, kSize);
    fill(block, 1, kSize);
    const Bytes before = resident();
    cycle(kept, block);
    EXPECT_TRUE(!kResidentSizeIsOurs || resident() >= before + kSize / 2);
    auto trimmed = kept.trim();
    ASSERT_OK(trimmed);
    EXPECT_EQ(*trimmed, kSize);
    EXPECT_EQ(kept.stats().host_pinned, Bytes(0));
    EXPECT_TRUE(!kResidentSizeIsOurs || resident() <= before + kMiB * 64) << resident().count();
    EXPECT_EQ(*kept.trim(), Bytes(0));
    cycle(kept, block); // and all is as it was
  }
  options.name = "released";
  options.backing = Backing::kRelease;
  Shard released = make_shard(options);
  void* block = allocate(released, kSize);
  fill(block, 1, kSize);
  const Bytes before = resident();
  cycle(released, block);
  EXPECT_EQ(released.stats().host_pinned, Bytes(0));
  EXPECT_TRUE(!kResidentSizeIsOurs || resident() <= before + kMiB * 64) << resident().count();
}

TEST_F(HostMemory, ATrimOfASleepingShardGivesBackWhatNoPageNeeds) {
  constexpr Bytes kBlock = kMiB * 64; // a piece each
  Shard shard = make_shard();
  void* blocks[3];
  for (int i = 0; i < 3; ++i) {
    blocks[i] = allocate(shard, kBlock);
    fill(blocks[i], static_cast<std::uint64_t>(i) + 1, kBlock);
  }
  ASSERT_OK(sleep({&shard}));
  const Bytes pinned = shard.stats().host_pinned;
  ASSERT_OK(shard.trim());
  EXPECT_EQ(shard.stats().host_pinned, pinned) << "all of it is needed";
  ASSERT_OK(shard.free(blocks[1]));
  auto given = shard.trim();
  ASSERT_OK(given);
  EXPECT_EQ(*given, kBlock);
  EXPECT_EQ(shard.stats().host_pinned, pinned - kBlock);
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(blocks[0], 1, kBlock));
  EXPECT_TRUE(holds(blocks[2], 3, kBlock));
  // The same bytes at the same place are copied again: their backing is gone.
  ASSERT_EQ(allocate(shard, kBlock), blocks[1]);
  fill(blocks[1], 2, kBlock);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(blocks[1], 2, kBlock));
  ASSERT_OK(sleep({&shard}));
  for (void* block : blocks) {
    ASSERT_OK(shard.free(block));
  }
  ASSERT_OK(shard.trim());
  EXPECT_EQ(host_pinned(*driver_), Bytes(0));
  ASSERT_OK(wake({&shard}));
}

TEST_F(HostMemory, ZeroPagesHoldNoHostMemoryOnceTrimmed) {
  constexpr Bytes kBlock = kMiB * 64;
  for (const HostCopy copy : {HostCopy::kPacked, HostCopy::kReadable}) {
    ShardOptions options;
    options.name = "zeros";
    options.host_copy = copy;
    Shard shard = make_shard(options);
    void* block = allocate(shard, kBlock);
    queue_fill(block, kBlock, 0, nullptr);
    synchronize();
    auto slept = sleep({&shard});
    ASSERT_OK(slept);
    EXPECT_EQ(slept->zero, copy == HostCopy::kPacked ? kBlock : Bytes(0)) << "what can be read is there";
    ASSERT_OK(shard.trim());
    EXPECT_EQ(shard.stats().host_pinned, copy == HostCopy::kPacked ? Bytes(0) : kBlock);
    ASSERT_OK(wake({&shard}));
    EXPECT_TRUE(is_zero(block, kBlock));
  }
}

TEST_F(HostMemory, AWakeThatReleasesItsBackingReportsWhatIsPinnedAfterwards) {
  ShardOptions options;
  options.name = "releasing";
  options.backing = Backing::kRelease;
  Shard shard = make_shard(options);
  fill(allocate(shard, kMiB * 4), 1, kMiB * 4);
  auto slept = sleep({&shard});
  ASSERT_OK(slept);
  EXPECT_EQ(slept->host_pinned, kMiB * 4);
  auto woken = wake({&shard});
  ASSERT_OK(woken);
  EXPECT_EQ(woken->host_pinned, Bytes(0));
  EXPECT_EQ(shard.stats().host_pinned, Bytes(0));
}

} // namespace
} // namespace stillwake
