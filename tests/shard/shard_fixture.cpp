// SPDX-License-Identifier: Apache-2.0
#include "tests/shard/shard_fixture.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace stillwake {

std::vector<std::uint64_t> content(std::uint64_t seed, Bytes size) {
  std::vector<std::uint64_t> words((size.size() + 7) / 8);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (std::uint64_t& word : words) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    word = state | 1;
  }
  return words;
}

void ShardTest::SetUp() { open(2, kMiB * 512); }

void ShardTest::open(int devices, Bytes memory) {
  driver_.reset();
  DriverOptions options;
  const char* wanted = std::getenv("STILLWAKE_DRIVER");
  if (wanted == nullptr) {
    options.kind = DriverKind::kEmulated;
  }
  options.emulated_devices = devices;
  options.emulated_memory = memory;
  options.faults = "";
  options.log.context = this;
  options.log.write = [](void* context, LogLevel level, const char* text) {
    auto* self = static_cast<ShardTest*>(context);
    if (level >= LogLevel::kWarning) {
      const std::lock_guard<std::mutex> lock(self->log_mutex_);
      self->log_.emplace_back(text);
    }
  };
  auto opened = Driver::open(options);
  ASSERT_TRUE(opened) << opened.error().describe();
  driver_.emplace(std::move(*opened));
}

void ShardTest::TearDown() {
  if (driver_ && emulated()) {
    // Every shard of the test is gone by now: what is left was leaked.
    EXPECT_EQ(emulation().live_handles(), 0u);
    EXPECT_EQ(emulation().live_reservations(), 0u);
    EXPECT_EQ(host_pinned(*driver_), Bytes(0));
  }
  driver_.reset();
}

Device& ShardTest::device(int index) { return **driver_->device(DeviceIndex(index)); }

Bytes ShardTest::free_memory(int index) { return driver_->memory(DeviceIndex(index))->free; }

void ShardTest::expect_free_at_least(Bytes wanted, int index) {
  for (int i = 0; i < 200 && free_memory(index) < wanted; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(free_memory(index).count(), wanted.count());
}

Shard ShardTest::make_shard(ShardOptions options) {
  auto shard = Shard::create(*driver_, std::move(options));
  EXPECT_TRUE(shard) << shard.error().describe();
  return std::move(*shard);
}

Shard ShardTest::make_shard(const std::string& name, Policy policy) {
  ShardOptions options;
  options.name = name;
  options.policy = policy;
  return make_shard(std::move(options));
}

void* ShardTest::allocate(Shard& shard, Bytes size, Stream stream, BlockKind kind) {
  auto block = shard.allocate(size, stream, kind);
  EXPECT_TRUE(block) << block.error().describe();
  return block ? *block : nullptr;
}

void ShardTest::write(const void* block, const std::vector<std::uint64_t>& words, int index) {
  ContextScope scope(device(index));
  EXPECT_EQ(table().cuMemcpyHtoDAsync(DeviceAddress(block).value(), words.data(), words.size() * 8, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
}

std::vector<std::uint64_t> ShardTest::read(const void* block, Bytes size, int index) {
  std::vector<std::uint64_t> words((size.size() + 7) / 8);
  ContextScope scope(device(index));
  EXPECT_EQ(table().cuMemcpyDtoHAsync(words.data(), DeviceAddress(block).value(), words.size() * 8, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  return words;
}

::testing::AssertionResult ShardTest::holds(const void* block, std::uint64_t seed, Bytes size, int index) {
  const auto expected = content(seed, size);
  const auto found = read(block, size, index);
  if (found == expected) { // one call, which costs the thread sanitizer little
    return ::testing::AssertionSuccess();
  }
  const auto first = std::mismatch(found.begin(), found.end(), expected.begin(), expected.end());
  return ::testing::AssertionFailure() << "word " << first.first - found.begin() << " of " << expected.size()
                                       << " of block " << seed << " is " << *first.first << ", not " << *first.second;
}

::testing::AssertionResult ShardTest::is_zero(const void* block, Bytes size) {
  for (std::uint64_t word : read(block, size)) {
    if (word != 0) {
      return ::testing::AssertionFailure() << "a word is " << word;
    }
  }
  return ::testing::AssertionSuccess();
}

OwnedStream ShardTest::make_stream(int index) {
  auto stream = OwnedStream::create(device(index));
  EXPECT_TRUE(stream);
  return std::move(*stream);
}

} // namespace stillwake
