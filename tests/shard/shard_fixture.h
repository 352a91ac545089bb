// SPDX-License-Identifier: Apache-2.0
// A ShardTest is the fixture of tests of shards on either driver: a driver, the bytes of blocks as patterns that every
// test can make again, and what the device has free. STILLWAKE_DRIVER chooses; without it the emulation runs.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/driver/emulation/emulation.h"
#include "shard/shard_core.h"
#include "shard/stillwake.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace stillwake {

/// Under a sanitizer the process holds shadows of what it touched: its resident size says nothing about ours.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kResidentSizeIsOurs = false;
#else
constexpr bool kResidentSizeIsOurs = true;
#endif

/// The content of block number `seed`: no two words alike, no page of zeros.
std::vector<std::uint64_t> content(std::uint64_t seed, Bytes size);

class ShardTest : public ::testing::Test {
protected:
  void SetUp() override;
  void TearDown() override;
  /// Opens the driver anew, with so many emulated devices of so many bytes.
  void open(int devices, Bytes memory);

  bool emulated() const { return driver_->kind() == DriverKind::kEmulated; }
  Emulation& emulation() { return *driver_->emulation(); }
  DriverTable& table() { return driver_->table(); }
  CallGate& gate() { return driver_->gate(); }
  Device& device(int index = 0);
  Bytes free_memory(int index = 0);
  /// Waits a little until at least so much is free: the driver gives memory back on its own time.
  void expect_free_at_least(Bytes wanted, int index = 0);

  Shard make_shard(ShardOptions options);
  Shard make_shard(const std::string& name = "weights", Policy policy = Policy::kPreserve);
  void* allocate(Shard& shard, Bytes size, Stream stream = nullptr, BlockKind kind = BlockKind::kShared);
  /// Copies in and waits.
  void write(const void* block, const std::vector<std::uint64_t>& words, int index = 0);
  std::vector<std::uint64_t> read(const void* block, Bytes size, int index = 0);
  void fill(void* block, std::uint64_t seed, Bytes size) { write(block, content(seed, size)); }
  /// The block holds content(seed).
  ::testing::AssertionResult holds(const void* block, std::uint64_t seed, Bytes size, int index = 0);
  ::testing::AssertionResult is_zero(const void* block, Bytes size);
  OwnedStream make_stream(int index = 0);

  std::optional<Driver> driver_;
  std::vector<std::string> log_; // warnings and errors
  std::mutex log_mutex_;
};

#define ASSERT_OK(expression)                                                                                          \
  do {                                                                                                                 \
    const auto& ok_ = (expression);                                                                                    \
    ASSERT_TRUE(ok_) << ok_.error().describe();                                                                        \
  } while (false)
#define EXPECT_OK(expression)                                                                                          \
  do {                                                                                                                 \
    const auto& ok_ = (expression);                                                                                    \
    EXPECT_TRUE(ok_) << ok_.error().describe();                                                                        \
  } while (false)
#define EXPECT_CODE(expression, wanted)                                                                                \
  do {                                                                                                                 \
    const auto& failed_ = (expression);                                                                                \
    ASSERT_FALSE(failed_) << "expected: " << to_string(wanted);                                                        \
    EXPECT_EQ(failed_.error().code, wanted) << failed_.error().describe();                                             \
  } while (false)

} // namespace stillwake
