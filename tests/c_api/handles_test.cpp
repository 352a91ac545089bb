// SPDX-License-Identifier: Apache-2.0
// Null handles, null pointers to write through, and handles released in the wrong order: each has its answer.
#include "tests/c_api/emulated_driver.h"

#include <functional>

namespace stillwake::c_api_test {
namespace {

class Handles : public EmulatedDriver {};

TEST_F(Handles, NullHandlesAreRefusedByName) {
  std::int32_t number = 0;
  std::uint64_t bytes = 0;
  bool truth = false;
  const char* text = nullptr;
  void* pointer = nullptr;
  const void* address = nullptr;
  auto stats = sized<stillwake_shard_stats>();
  auto figures = sized<stillwake_report_figures>();
  auto step = sized<stillwake_report_step>();
  auto leftover = sized<stillwake_report_leftover>();
  auto options = sized<stillwake_shard_options>();
  stillwake_shard* shard = nullptr;
  stillwake_ticket* ticket = nullptr;
  const auto visit = [](void*, const char*, std::uint64_t, std::uint64_t) {};
  const std::vector<std::pair<const char*, std::function<stillwake_status()>>> calls = {
      {"driver", [&] { return stillwake_driver_close(nullptr); }},
      {"driver", [&] { return stillwake_driver_kind(nullptr, &number); }},
      {"driver", [&] { return stillwake_driver_describe(nullptr, &text); }},
      {"driver", [&] { return stillwake_driver_device_count(nullptr, &number); }},
      {"driver", [&] { return stillwake_driver_memory(nullptr, 0, &bytes, &bytes); }},
      {"driver", [&] { return stillwake_driver_counters(nullptr, visit, nullptr); }},
      {"driver", [&] { return stillwake_set_host_budget(nullptr, 1); }},
      {"driver", [&] { return stillwake_set_pinning_threads(nullptr, 1); }},
      {"driver", [&] { return stillwake_host_pinned(nullptr, &bytes); }},
      {"driver", [&] { return stillwake_shard_create(nullptr, &options, &shard); }},
      {"driver", [&] { return stillwake_sleep_all(nullptr, nullptr, nullptr); }},
      {"driver", [&] { return stillwake_wake_all(nullptr, nullptr, nullptr); }},
      {"shard", [&] { return stillwake_shard_destroy(nullptr); }},
      {"shard", [&] { return stillwake_shard_allocate(nullptr, 1, nullptr, 0, &pointer); }},
      {"shard", [&] { return stillwake_shard_free(nullptr, &number); }},
      {"shard", [&] { return stillwake_shard_free_on_stream(nullptr, &number, nullptr); }},
      {"shard", [&] { return stillwake_shard_name(nullptr, &text); }},
      {"shard", [&] { return stillwake_shard_device(nullptr, &number); }},
      {"shard", [&] { return stillwake_shard_policy(nullptr, &number); }},
      {"shard", [&] { return stillwake_shard_state(nullptr, &number); }},
      {"shard", [&] { return stillwake_shard_stats_get(nullptr, &stats); }},
      {"shard", [&] { return stillwake_shard_contains(nullptr, &number, &truth); }},
      {"shard", [&] { return stillwake_shard_first_address(nullptr, &address); }},
      {"shard", [&] { return stillwake_shard_prepare(nullptr, 0); }},
      {"shard", [&] { return stillwake_shard_trim(nullptr, &bytes); }},
      {"shard", [&] { return stillwake_shard_host_address(nullptr, &number, &pointer); }},
      {"shard", [&] { return stillwake_shard_mark_host_dirty(nullptr, &number, 1); }},
      {"shards", [&] { return stillwake_sleep(nullptr, 1, nullptr, nullptr); }},
      {"shards", [&] { return stillwake_wake(nullptr, 1, nullptr, nullptr); }},
      {"shards[0]", [&] { return stillwake_wake(&shard, 1, nullptr, nullptr); }},
      {"shards", [&] { return stillwake_wake_on_streams(nullptr, 1, nullptr, 0, nullptr, &ticket); }},
      {"outgoing", [&] { return stillwake_swap(nullptr, 1, &shard, 1, nullptr, nullptr, nullptr); }},
      {"report", [&] { return stillwake_report_figures_get(nullptr, &figures); }},
      {"report", [&] { return stillwake_report_line(nullptr, &text); }},
      {"report", [&] { return stillwake_report_step_get(nullptr, 0, &step); }},
      {"report", [&] { return stillwake_report_leftover_get(nullptr, 0, &leftover); }},
      {"report", [&] { return stillwake_report_release(nullptr); }},
      {"ticket", [&] { return stillwake_ticket_wait(nullptr, nullptr); }},
      {"ticket", [&] { return stillwake_ticket_wait_range(nullptr, nullptr, &number, 1); }},
      {"ticket", [&] { return stillwake_ticket_is_done(nullptr, &truth); }},
      {"ticket", [&] { return stillwake_ticket_result(nullptr, nullptr); }},
      {"ticket", [&] { return stillwake_ticket_release(nullptr); }},
      {"staged", [&] { return stillwake_staged_sleep_commit(nullptr, nullptr); }},
      {"staged", [&] { return stillwake_staged_sleep_abandon(nullptr); }},
      {"staged", [&] { return stillwake_staged_sleep_release(nullptr); }},
      {"staged", [&] { return stillwake_staged_wake_commit(nullptr, nullptr, 0, &ticket); }},
      {"staged", [&] { return stillwake_staged_wake_abandon(nullptr); }},
      {"staged", [&] { return stillwake_staged_wake_release(nullptr); }},
      {"ranges", [&] { return stillwake_live_ranges_add(nullptr, &number, 0, 1); }},
  };
  for (const auto& [name, call] : calls) {
    EXPECT_FAILS(call(), STILLWAKE_INVALID_ARGUMENT, name + std::string(" "));
  }
}

TEST_F(Handles, NothingIsWrittenThroughNull) {
  stillwake_shard* made = shard("s");
  std::uint64_t bytes = 0;
  const auto options = sized<stillwake_shard_options>();
  EXPECT_FAILS(stillwake_driver_open(nullptr, nullptr), STILLWAKE_INVALID_ARGUMENT, "driver is null");
  EXPECT_FAILS(stillwake_driver_kind(driver_, nullptr), STILLWAKE_INVALID_ARGUMENT, "kind is null");
  EXPECT_FAILS(stillwake_driver_describe(driver_, nullptr), STILLWAKE_INVALID_ARGUMENT, "text is null");
  EXPECT_FAILS(stillwake_driver_device_count(driver_, nullptr), STILLWAKE_INVALID_ARGUMENT, "count is null");
  EXPECT_FAILS(stillwake_driver_memory(driver_, 0, nullptr, &bytes), STILLWAKE_INVALID_ARGUMENT, "free_bytes is null");
  EXPECT_FAILS(stillwake_driver_memory(driver_, 0, &bytes, nullptr), STILLWAKE_INVALID_ARGUMENT, "total_bytes is null");
  EXPECT_FAILS(stillwake_driver_counters(driver_, nullptr, nullptr), STILLWAKE_INVALID_ARGUMENT, "visit is null");
  EXPECT_FAILS(stillwake_host_pinned(driver_, nullptr), STILLWAKE_INVALID_ARGUMENT, "bytes is null");
  EXPECT_FAILS(stillwake_shard_create(driver_, &options, nullptr), STILLWAKE_INVALID_ARGUMENT, "shard is null");
  EXPECT_FAILS(stillwake_shard_allocate(made, 1, nullptr, 0, nullptr), STILLWAKE_INVALID_ARGUMENT, "pointer is null");
  EXPECT_FAILS(stillwake_shard_name(made, nullptr), STILLWAKE_INVALID_ARGUMENT, "name is null");
  EXPECT_FAILS(stillwake_shard_stats_get(made, nullptr), STILLWAKE_INVALID_ARGUMENT, "is null");
  EXPECT_FAILS(stillwake_shard_contains(made, &bytes, nullptr), STILLWAKE_INVALID_ARGUMENT, "contains is null");
  EXPECT_FAILS(stillwake_shard_first_address(made, nullptr), STILLWAKE_INVALID_ARGUMENT, "address is null");
  EXPECT_FAILS(stillwake_wake_on_streams(&made, 1, nullptr, 0, nullptr, nullptr), STILLWAKE_INVALID_ARGUMENT,
               "ticket is null");
  EXPECT_FAILS(stillwake_stage_sleep(&made, 1, nullptr, nullptr), STILLWAKE_INVALID_ARGUMENT, "staged is null");
  EXPECT_FAILS(stillwake_stage_wake(&made, 1, nullptr, nullptr), STILLWAKE_INVALID_ARGUMENT, "staged is null");
  EXPECT_EQ(state(made), STILLWAKE_STATE_AWAKE);
}

TEST_F(Handles, NamelessAndWrongShardsAreRefused) {
  stillwake_shard* made = nullptr;
  EXPECT_EQ(stillwake_shard_create(driver_, nullptr, &made), STILLWAKE_INVALID_ARGUMENT) << "no name";
  auto options = sized<stillwake_shard_options>();
  options.name = "s";
  options.device = 2;
  EXPECT_EQ(stillwake_shard_create(driver_, &options, &made), STILLWAKE_INVALID_ARGUMENT);
  options.device = 0;
  options.policy = 3;
  EXPECT_FAILS(stillwake_shard_create(driver_, &options, &made), STILLWAKE_INVALID_ARGUMENT, "policy is 3");
  options.policy = 0;
  options.host_copy = -1;
  EXPECT_FAILS(stillwake_shard_create(driver_, &options, &made), STILLWAKE_INVALID_ARGUMENT, "host_copy is -1");
  options.host_copy = 0;
  options.backing = 2;
  EXPECT_FAILS(stillwake_shard_create(driver_, &options, &made), STILLWAKE_INVALID_ARGUMENT, "backing is 2");
  options.backing = 0;
  options.trust = 1;
  EXPECT_EQ(stillwake_shard_create(driver_, &options, &made), STILLWAKE_INVALID_ARGUMENT) << "trust without frozen";
  options.trust = 0;
  options.peer_count = 1;
  EXPECT_FAILS(stillwake_shard_create(driver_, &options, &made), STILLWAKE_INVALID_ARGUMENT, "peers is null");
  EXPECT_EQ(made, nullptr);
  stillwake_shard* good = shard("good");
  void* pointer = nullptr;
  EXPECT_FAILS(stillwake_shard_allocate(good, 1, nullptr, 2, &pointer), STILLWAKE_INVALID_ARGUMENT, "block_kind is 2");
  EXPECT_EQ(stillwake_shard_allocate(good, 0, nullptr, 0, &pointer), STILLWAKE_INVALID_ARGUMENT);
  EXPECT_EQ(stillwake_shard_allocate(good, UINT64_MAX, nullptr, 0, &pointer), STILLWAKE_INVALID_ARGUMENT);
  EXPECT_FAILS(stillwake_shard_prepare(good, 2), STILLWAKE_INVALID_ARGUMENT, "how is 2");
}

TEST_F(Handles, TheDriverOutlivesWhatIsOpenOnIt) {
  stillwake_shard* kept = shard("kept");
  EXPECT_FAILS(stillwake_driver_close(driver_), STILLWAKE_BUSY, "1 shards");
  stillwake_staged_sleep* staged = nullptr;
  block(kept, 100, 1);
  ASSERT_OK(stillwake_stage_sleep(&kept, 1, nullptr, &staged));
  EXPECT_FAILS(stillwake_shard_destroy(kept), STILLWAKE_BUSY, "'kept'");
  EXPECT_OK(stillwake_staged_sleep_commit(staged, nullptr));
  EXPECT_OK(stillwake_shard_destroy(kept));
  shards_.clear();
  EXPECT_FAILS(stillwake_driver_close(driver_), STILLWAKE_BUSY, "staged halves");
  EXPECT_OK(stillwake_staged_sleep_release(staged));
  EXPECT_OK(stillwake_driver_close(driver_));
  driver_ = nullptr;
}

TEST_F(Handles, AShardTellsAboutItself) {
  auto options = sized<stillwake_shard_options>();
  options.device = 1;
  options.policy = STILLWAKE_POLICY_FROZEN;
  options.trust = 1;
  options.addresses = 64ULL << 20;
  stillwake_shard* made = shard("second device", options);
  const char* name = nullptr;
  EXPECT_OK(stillwake_shard_name(made, &name));
  EXPECT_STREQ(name, "second device");
  std::int32_t number = -1;
  EXPECT_OK(stillwake_shard_device(made, &number));
  EXPECT_EQ(number, 1);
  EXPECT_OK(stillwake_shard_policy(made, &number));
  EXPECT_EQ(number, STILLWAKE_POLICY_FROZEN);
  unsigned char* first = block(made, 1000, 1);
  bool inside = false;
  const void* begin = nullptr;
  EXPECT_OK(stillwake_shard_first_address(made, &begin));
  EXPECT_EQ(begin, first) << "the first block of a reservation";
  EXPECT_OK(stillwake_shard_contains(made, first, &inside));
  EXPECT_TRUE(inside);
  EXPECT_OK(stillwake_shard_contains(made, &inside, &inside));
  EXPECT_FALSE(inside);
  auto stats = sized<stillwake_shard_stats>();
  EXPECT_OK(stillwake_shard_stats_get(made, &stats));
  EXPECT_EQ(stats.blocks, 1U);
  EXPECT_GE(stats.mapped, 2ULL << 20);
  EXPECT_EQ(stats.reserved_addresses, 64ULL << 20);
  EXPECT_OK(stillwake_shard_free_on_stream(made, first, nullptr));
  EXPECT_EQ(stillwake_shard_free(made, first), STILLWAKE_INVALID_ARGUMENT) << "a double free";
  EXPECT_OK(stillwake_shard_stats_get(made, &stats));
  EXPECT_EQ(stats.blocks, 0U);
}

} // namespace
} // namespace stillwake::c_api_test
