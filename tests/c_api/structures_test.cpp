// SPDX-License-Identifier: Apache-2.0
// The rule of struct_size: shorter and longer structures of other versions, and ones whose size was never set.
#include "tests/c_api/emulated_driver.h"

namespace stillwake::c_api_test {
namespace {

class Structures : public EmulatedDriver {};

struct LongerOptions {
  stillwake_sleep_options known;
  std::uint64_t of_a_later_version;
};
struct LongerStats {
  stillwake_shard_stats known;
  std::uint64_t of_a_later_version;
};

TEST_F(Structures, AShorterOneHasZerosInTheRest) {
  stillwake_shard* shard_ = shard("s");
  auto options = sized<stillwake_sleep_options>();
  options.struct_size = sizeof(std::size_t); // as of a version that had no member yet
  options.has_timeout = 1;                   // beyond: not read
  options.timeout_ns = UINT64_MAX;
  EXPECT_OK(stillwake_sleep(&shard_, 1, &options, nullptr));
}

TEST_F(Structures, ALongerOneMayHoldOnlyZerosThere) {
  stillwake_shard* shard_ = shard("s");
  LongerOptions options{sized<stillwake_sleep_options>(), 0};
  options.known.struct_size = sizeof options;
  EXPECT_OK(stillwake_sleep(&shard_, 1, &options.known, nullptr));
  options.of_a_later_version = 1;
  EXPECT_FAILS(stillwake_sleep(&shard_, 1, &options.known, nullptr), STILLWAKE_INVALID_ARGUMENT,
               "stillwake_sleep_options: the 8 bytes after");
}

TEST_F(Structures, ASizeThatWasNeverSetIsRefused) {
  stillwake_shard* shard_ = shard("s");
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{4097}, SIZE_MAX}) {
    auto options = sized<stillwake_wake_options>();
    options.struct_size = size;
    EXPECT_FAILS(stillwake_wake(&shard_, 1, &options, nullptr), STILLWAKE_INVALID_ARGUMENT, "struct_size is");
    auto stats = sized<stillwake_shard_stats>();
    stats.struct_size = size;
    EXPECT_FAILS(stillwake_shard_stats_get(shard_, &stats), STILLWAKE_INVALID_ARGUMENT, "struct_size is");
  }
}

TEST_F(Structures, AnAnswerIsWrittenAsFarAsBothKnow) {
  stillwake_shard* shard_ = shard("s");
  block(shard_, 1000, 1);
  LongerStats longer{sized<stillwake_shard_stats>(), 42};
  longer.known.struct_size = sizeof longer;
  EXPECT_OK(stillwake_shard_stats_get(shard_, &longer.known));
  EXPECT_EQ(longer.known.blocks, 1U);
  EXPECT_EQ(longer.known.struct_size, sizeof longer);
  EXPECT_EQ(longer.of_a_later_version, 42U);
  auto shorter = sized<stillwake_shard_stats>();
  shorter.struct_size = offsetof(stillwake_shard_stats, mapped);
  EXPECT_OK(stillwake_shard_stats_get(shard_, &shorter));
  EXPECT_EQ(shorter.blocks, 1U);
  EXPECT_GE(shorter.allocated, 1000U);
  EXPECT_EQ(shorter.mapped, 0U) << "beyond the caller's structure";
}

TEST_F(Structures, WrongMembersAreRefused) {
  stillwake_shard* shard_ = shard("s");
  auto sleep = sized<stillwake_sleep_options>();
  sleep.has_timeout = 1;
  sleep.timeout_ns = UINT64_MAX;
  EXPECT_FAILS(stillwake_sleep(&shard_, 1, &sleep, nullptr), STILLWAKE_INVALID_ARGUMENT, "timeout_ns is");
  sleep.has_timeout = 0;
  sleep.may_capture_count = 1;
  EXPECT_FAILS(stillwake_sleep(&shard_, 1, &sleep, nullptr), STILLWAKE_INVALID_ARGUMENT, "may_capture is null");
  auto wake = sized<stillwake_wake_options>();
  wake.reserved = 1;
  EXPECT_FAILS(stillwake_wake(&shard_, 1, &wake, nullptr), STILLWAKE_INVALID_ARGUMENT, "reserved is 1");
  wake.reserved = 0;
  wake.first_count = 1;
  EXPECT_FAILS(stillwake_wake(&shard_, 1, &wake, nullptr), STILLWAKE_INVALID_ARGUMENT, "first is null");
  wake.first_count = 0;
  wake.chunk = 5;
  EXPECT_EQ(stillwake_wake(&shard_, 1, &wake, nullptr), STILLWAKE_INVALID_ARGUMENT);
  EXPECT_EQ(state(shard_), STILLWAKE_STATE_AWAKE);
}

} // namespace
} // namespace stillwake::c_api_test
