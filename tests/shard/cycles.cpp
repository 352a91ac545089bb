// SPDX-License-Identifier: Apache-2.0
#include "tests/shard/cycles.h"

#include <fstream>
#include <map>
#include <random>

namespace stillwake {
namespace {

// Anonymous memory of this process. Pages of the emulated device are shared ones and not in it.
Bytes anonymous_memory() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    if (word == "RssAnon:") {
      std::uint64_t kib = 0;
      file >> kib;
      return kKiB * kib;
    }
  }
  return Bytes(0);
}

} // namespace

void Cycles::run() {
  constexpr std::size_t kBlocks = 60;
  std::optional<Shard> shard(make_shard());
  std::mt19937 random(11);
  struct Block {
    std::uint64_t seed;
    Bytes size;
  };
  std::map<void*, Block> blocks;
  const auto churn = [&](bool asleep) {
    while (!blocks.empty() && (blocks.size() >= kBlocks || random() % 3 == 0)) {
      const auto block = std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random() % blocks.size()));
      ASSERT_OK(random() % 2 == 0 ? shard->free(block->first) : shard->free(block->first, nullptr));
      blocks.erase(block);
    }
    while (!asleep && blocks.size() < kBlocks) {
      const Bytes size = kKiB * 8 * (1 + random() % (random() % 8 == 0 ? 300 : 20));
      void* at = allocate(*shard, size);
      ASSERT_NE(at, nullptr);
      blocks[at] = {random(), size};
      fill(at, blocks[at].seed, size);
    }
  };
  const Bytes free_at_first = free_memory();
  std::optional<Bytes> residue, resident;
  for (int cycle = 0; cycle < count; ++cycle) {
    churn(false);
    auto slept = sleep({&*shard});
    ASSERT_OK(slept);
    ASSERT_EQ(slept->not_freed, Bytes(0));
    if (emulated()) {
      const Bytes used = emulation().used(DeviceIndex(0));
      ASSERT_LE(used, residue.value_or(used) + kMiB * 2) << "cycle " << cycle;
      residue = std::min(used, residue.value_or(used));
      ASSERT_EQ(emulation().live_handles(), 0u);
    } else {
      expect_free_at_least(free_at_first - kMiB * 2);
    }
    churn(true);
    ASSERT_OK(wake({&*shard}));
    for (const auto& [at, block] : blocks) {
      ASSERT_TRUE(holds(at, block.seed, block.size)) << "cycle " << cycle;
    }
    if (cycle == count / 2) {
      ASSERT_OK(shard->trim());
      resident = anonymous_memory();
    }
  }
  ASSERT_OK(shard->trim());
  EXPECT_TRUE(!kResidentSizeIsOurs || anonymous_memory() <= *resident + kMiB * 16) << anonymous_memory().count();
  shard->core().check_invariants();
  shard.reset();
  EXPECT_EQ(gate().calls(CallId::cuMemCreate), gate().calls(CallId::cuMemRelease));
}

} // namespace stillwake
