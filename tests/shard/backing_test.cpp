// SPDX-License-Identifier: Apache-2.0
// Backing that outlives a wake: what is not copied again, what policies promise, prepare ahead of time, and trim.
#include "tests/shard/stream_work.h"

#include <atomic>

namespace stillwake {
namespace {

constexpr Bytes kSize = kMiB * 12;

class BackingKept : public ShardWork {
protected:
  Shard make(Policy policy, Backing backing, bool trust = false) {
    ShardOptions options;
    options.name = "weights";
    options.policy = policy;
    options.backing = backing;
    options.trust = trust;
    return make_shard(options);
  }
};

TEST_F(BackingKept, OnlyPagesThatChangedAreCopiedAgain) {
  Shard shard = make(Policy::kPreserve, Backing::kRetain);
  auto* block = static_cast<std::byte*>(allocate(shard, kSize));
  fill(block, 1, kSize);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_EQ(shard.stats().host_pinned, kSize);
  queue_fill(block + kPageBytes.size() * 2 + 7, Bytes(1), 0, nullptr);
  synchronize();
  auto slept = sleep({&shard});
  ASSERT_OK(slept);
  EXPECT_EQ(slept->copied, kPageBytes);
  EXPECT_EQ(slept->unchanged, kSize - kPageBytes);
  ASSERT_OK(wake({&shard}));
  auto expected = content(1, kSize);
  reinterpret_cast<unsigned char*>(expected.data())[kPageBytes.size() * 2 + 7] = 0;
  EXPECT_TRUE(read(block, kSize) == expected);
}

TEST_F(BackingKept, ReleasedBackingIsCopiedAgain) {
  Shard shard = make(Policy::kPreserve, Backing::kRelease);
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  for (int cycle = 0; cycle < 2; ++cycle) {
    auto slept = sleep({&shard});
    ASSERT_OK(slept);
    EXPECT_EQ(slept->copied, kSize);
    ASSERT_OK(wake({&shard}));
    EXPECT_EQ(shard.stats().host_pinned, Bytes(0));
    EXPECT_TRUE(holds(block, 1, kSize));
  }
}

TEST_F(BackingKept, AfterTrimEverythingIsCopiedAgain) {
  Shard shard = make(Policy::kPreserve, Backing::kRetain);
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  ASSERT_OK(sleep({&shard}));
  EXPECT_EQ(*shard.trim(), Bytes(0)) << "a sleeping page needs all of it";
  ASSERT_OK(wake({&shard}));
  EXPECT_EQ(*shard.trim(), kSize);
  auto slept = sleep({&shard});
  ASSERT_OK(slept);
  EXPECT_EQ(slept->copied, kSize);
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 1, kSize));
}

TEST_F(BackingKept, FrozenIsHashedAndTakesAChangeThatWasPromisedNotToBe) {
  Shard shard = make(Policy::kFrozen, Backing::kRetain);
  auto* block = static_cast<std::byte*>(allocate(shard, kSize));
  fill(block, 1, kSize);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  auto unchanged = sleep({&shard});
  ASSERT_OK(unchanged);
  EXPECT_EQ(unchanged->unchanged, kSize);
  EXPECT_EQ(unchanged->trusted, Bytes(0));
  ASSERT_OK(wake({&shard}));
  fill(block, 2, kSize);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 2, kSize));
}

TEST_F(BackingKept, TrustedIsNeitherHashedNorCopiedOnceItWasSaved) {
  Shard shard = make(Policy::kFrozen, Backing::kRetain, true);
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  auto first = sleep({&shard});
  ASSERT_OK(first);
  EXPECT_EQ(first->copied, kSize);
  EXPECT_EQ(first->trusted, Bytes(0));
  for (int cycle = 0; cycle < 2; ++cycle) {
    ASSERT_OK(wake({&shard}));
    const std::uint64_t launches = gate().calls(CallId::cuLaunchKernel);
    auto later = sleep({&shard});
    ASSERT_OK(later);
    EXPECT_EQ(later->trusted, kSize);
    EXPECT_EQ(later->copied, Bytes(0));
    EXPECT_EQ(gate().calls(CallId::cuLaunchKernel), launches);
  }
  auto woken = wake({&shard});
  ASSERT_OK(woken);
  EXPECT_TRUE(woken->verified);
  EXPECT_TRUE(holds(block, 1, kSize));
  // A new block of a trusted shard has never been saved.
  void* later = allocate(shard, kSize);
  fill(later, 2, kSize);
  auto grown = sleep({&shard});
  ASSERT_OK(grown);
  EXPECT_EQ(grown->copied, kSize);
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(later, 2, kSize));
}

TEST_F(BackingKept, ABlockThatTakesTheAddressesOfAFreedOneIsSavedAnew) {
  for (bool trust : {false, true}) {
    Shard shard = make(trust ? Policy::kFrozen : Policy::kPreserve, Backing::kRetain, trust);
    void* block = allocate(shard, kSize);
    fill(block, 1, kSize);
    ASSERT_OK(sleep({&shard}));
    ASSERT_OK(wake({&shard}));
    ASSERT_OK(shard.free(block, nullptr));
    void* again = allocate(shard, kSize);
    EXPECT_EQ(again, block) << "the test wants the same addresses";
    fill(again, 2, kSize);
    ASSERT_OK(sleep({&shard}));
    ASSERT_OK(wake({&shard}));
    EXPECT_TRUE(holds(again, 2, kSize)) << (trust ? "trusted" : "hashed");
  }
}

TEST_F(BackingKept, PrepareInTheBackgroundIsWaitedForByTheNextTransition) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 64);
  fill(block, 1, kMiB * 64);
  ASSERT_OK(shard.prepare(Shard::Prepare::kBackground));
  for (int i = 0; i < 200; ++i) { // nobody who allocates meanwhile notices
    auto other = shard.allocate(kKiB);
    ASSERT_OK(other);
    ASSERT_OK(shard.free(*other, nullptr));
  }
  const auto slept = sleep({&shard});
  ASSERT_OK(slept);
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 1, kMiB * 64));
}

TEST_F(BackingKept, AllocatingWhilePreparingIsNeverRefused) {
  Shard shard = make_shard();
  for (int i = 0; i < 200; ++i) {
    allocate(shard, kKiB * 4);
  }
  std::atomic<bool> over{false};
  std::thread preparer([&] {
    for (int i = 0; i < 50; ++i) {
      EXPECT_OK(shard.prepare());
    }
    over = true;
  });
  while (!over) {
    auto block = shard.allocate(kKiB * 8);
    EXPECT_OK(block);
    if (!block) {
      break;
    }
    EXPECT_OK(shard.free(*block, nullptr));
  }
  preparer.join();
}

TEST_F(BackingKept, ErrorsOfPrepareComeFromItOrFromTheNextTransition) {
  Shard shard = make_shard();
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  set_host_budget(*driver_, kMiB * 2);
  EXPECT_CODE(shard.prepare(), ErrorCode::kOverBudget);
  ASSERT_OK(shard.prepare(Shard::Prepare::kBackground));
  set_host_budget(*driver_, kMiB * 2);
  EXPECT_CODE(sleep({&shard}), ErrorCode::kOverBudget);
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  set_host_budget(*driver_, std::nullopt);
  fail(CallId::cuMemHostRegister, 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CODE(shard.prepare(), ErrorCode::kOutOfHostMemory);
  fail(CallId::cuMemHostRegister, 1, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_OK(shard.prepare(Shard::Prepare::kBackground));
  EXPECT_CODE(sleep({&shard}), ErrorCode::kOutOfHostMemory);
  heal();
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  EXPECT_EQ(host_pinned(*driver_), Bytes(0));
  ASSERT_OK(sleep({&shard})); // told once
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 1, kSize));
}

TEST_F(BackingKept, PreparedAndNeverSleptIsNoTrouble) {
  Shard shard = make_shard();
  allocate(shard, kSize);
  ASSERT_OK(shard.prepare());
  Shard background = make_shard("background");
  allocate(background, kSize);
  ASSERT_OK(background.prepare(Shard::Prepare::kBackground));
  Shard scratch = make_shard("scratch", Policy::kDiscard);
  allocate(scratch, kSize);
  ASSERT_OK(scratch.prepare());
  EXPECT_EQ(scratch.stats().host_pinned, Bytes(0));
}

} // namespace
} // namespace stillwake
