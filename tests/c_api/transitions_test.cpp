// SPDX-License-Identifier: Apache-2.0
// Content through sleep, wake, swap, tickets and staged halves, all through the C interface.
#include "tests/c_api/emulated_driver.h"

namespace stillwake::c_api_test {
namespace {

class Transitions : public EmulatedDriver {
protected:
  static constexpr std::size_t kSize = 5 << 20;
};

TEST_F(Transitions, SleepAndWakeKeepPointersAndBytes) {
  stillwake_shard* set[] = {shard("a"), shard("b")};
  unsigned char* a = block(set[0], kSize, 11);
  unsigned char* b = block(set[1], 3, 22);
  std::uint64_t before = 0;
  std::uint64_t total = 0;
  EXPECT_OK(stillwake_driver_memory(driver_, 0, &before, &total));
  stillwake_report* report = nullptr;
  ASSERT_OK(stillwake_sleep(set, 2, nullptr, &report));
  const auto slept = figures(report);
  EXPECT_EQ(slept.kind, STILLWAKE_REPORT_SLEEP);
  EXPECT_EQ(slept.shards, 2U);
  EXPECT_EQ(slept.shards_moved, 2U);
  EXPECT_EQ(slept.live, 8ULL << 20) << "three pages and one";
  EXPECT_GE(slept.freed, slept.live);
  EXPECT_EQ(slept.leftover_count, 0U);
  EXPECT_GT(slept.took_ns, 0U);
  const char* line = nullptr;
  EXPECT_OK(stillwake_report_line(report, &line));
  EXPECT_EQ(std::string(line).rfind("sleep", 0), 0U) << line;
  ASSERT_GT(slept.step_count, 0U);
  auto step = sized<stillwake_report_step>();
  EXPECT_OK(stillwake_report_step_get(report, slept.step_count - 1, &step));
  EXPECT_STRNE(step.name, "");
  EXPECT_FAILS(stillwake_report_step_get(report, slept.step_count, &step), STILLWAKE_INVALID_ARGUMENT, "step");
  auto leftover = sized<stillwake_report_leftover>();
  EXPECT_FAILS(stillwake_report_leftover_get(report, 0, &leftover), STILLWAKE_INVALID_ARGUMENT, "leftover 0");
  EXPECT_OK(stillwake_report_release(report));

  std::uint64_t asleep = 0;
  EXPECT_OK(stillwake_driver_memory(driver_, 0, &asleep, &total));
  EXPECT_EQ(asleep - before, slept.freed);
  EXPECT_EQ(state(set[0]), STILLWAKE_STATE_ASLEEP);
  void* pointer = nullptr;
  EXPECT_EQ(stillwake_shard_allocate(set[0], 1, nullptr, 0, &pointer), STILLWAKE_ASLEEP);

  ASSERT_OK(stillwake_wake(set, 2, nullptr, &report));
  const auto woken = figures(report);
  EXPECT_EQ(woken.kind, STILLWAKE_REPORT_WAKE);
  EXPECT_EQ(woken.verified, 1);
  EXPECT_OK(stillwake_report_release(report));
  EXPECT_TRUE(holds(a, kSize, 11));
  EXPECT_TRUE(holds(b, 3, 22));
}

TEST_F(Transitions, AllMeansEveryShardOfTheDriver) {
  stillwake_shard* a = shard("a");
  auto options = sized<stillwake_shard_options>();
  options.device = 1;
  stillwake_shard* b = shard("b", options);
  unsigned char* content = block(b, kSize, 5);
  block(a, 10, 5);
  auto sleep = sized<stillwake_sleep_options>();
  sleep.has_timeout = 1;
  sleep.timeout_ns = 5'000'000'000;
  sleep.checked = 1;
  EXPECT_OK(stillwake_sleep_all(driver_, &sleep, nullptr));
  EXPECT_EQ(state(a), STILLWAKE_STATE_ASLEEP);
  EXPECT_EQ(state(b), STILLWAKE_STATE_ASLEEP);
  stillwake_report* report = nullptr;
  EXPECT_OK(stillwake_wake_all(driver_, nullptr, &report));
  EXPECT_EQ(figures(report).shards_moved, 2U);
  EXPECT_OK(stillwake_report_release(report));
  EXPECT_OK(stillwake_wake_all(driver_, nullptr, &report));
  EXPECT_EQ(figures(report).shards_moved, 0U) << "a no-op, reported as such";
  EXPECT_OK(stillwake_report_release(report));
  EXPECT_TRUE(holds(content, kSize, 5));
}

TEST_F(Transitions, SwapTakesTurns) {
  auto driver = sized<stillwake_driver_options>();
  driver.kind = STILLWAKE_DRIVER_EMULATED;
  driver.emulated_memory = 1ULL << 30;
  stillwake_driver* wide = nullptr; // room for the margin of a swap
  ASSERT_OK(stillwake_driver_open(&driver, &wide));
  stillwake_shard* tenants[2] = {};
  unsigned char* content[2] = {};
  for (int i = 0; i < 2; ++i) {
    auto options = sized<stillwake_shard_options>();
    options.name = i == 0 ? "out" : "in";
    ASSERT_OK(stillwake_shard_create(wide, &options, &tenants[i]));
    content[i] = block(tenants[i], kSize, static_cast<unsigned char>(i + 1));
  }
  EXPECT_OK(stillwake_sleep(&tenants[1], 1, nullptr, nullptr));
  stillwake_report* report = nullptr;
  ASSERT_OK(stillwake_swap(&tenants[0], 1, &tenants[1], 1, nullptr, nullptr, &report));
  EXPECT_EQ(figures(report).kind, STILLWAKE_REPORT_SWAP);
  EXPECT_OK(stillwake_report_release(report));
  EXPECT_EQ(state(tenants[0]), STILLWAKE_STATE_ASLEEP);
  EXPECT_TRUE(holds(content[1], kSize, 2));
  EXPECT_OK(stillwake_swap(&tenants[1], 1, &tenants[0], 1, nullptr, nullptr, nullptr));
  EXPECT_TRUE(holds(content[0], kSize, 1));
  EXPECT_OK(stillwake_shard_destroy(tenants[0]));
  EXPECT_OK(stillwake_shard_destroy(tenants[1]));
  EXPECT_OK(stillwake_driver_close(wide));
}

TEST_F(Transitions, OptionsThatCannotBeAreRefusedByNameAndNothingHasChanged) {
  stillwake_shard* shard_ = shard("s");
  unsigned char* content = block(shard_, kSize, 9);
  auto sleeping = sized<stillwake_sleep_options>();
  sleeping.has_timeout = 1;
  sleeping.timeout_ns = static_cast<std::uint64_t>(std::int64_t{-1});
  EXPECT_FAILS(stillwake_sleep(&shard_, 1, &sleeping, nullptr), STILLWAKE_INVALID_ARGUMENT,
               "timeout_ns is 18446744073709551615; give 0 to 9223372036854775807");
  EXPECT_EQ(state(shard_), STILLWAKE_STATE_AWAKE);
  EXPECT_OK(stillwake_sleep(&shard_, 1, nullptr, nullptr));
  auto waking = sized<stillwake_wake_options>();
  waking.has_timeout = 1;
  waking.timeout_ns = sleeping.timeout_ns;
  EXPECT_FAILS(stillwake_wake(&shard_, 1, &waking, nullptr), STILLWAKE_INVALID_ARGUMENT, "timeout_ns is");
  waking.has_timeout = 0;
  int local = 0;
  for (const stillwake_range& first :
       {stillwake_range{&local, 4}, stillwake_range{content, 0}, stillwake_range{content, UINT64_MAX}}) {
    waking.first = &first;
    waking.first_count = 1;
    EXPECT_FAILS(stillwake_wake(&shard_, 1, &waking, nullptr), STILLWAKE_INVALID_ARGUMENT, "that is wanted first");
    EXPECT_FAILS(stillwake_wake_all(driver_, &waking, nullptr), STILLWAKE_INVALID_ARGUMENT, "that is wanted first");
    EXPECT_EQ(state(shard_), STILLWAKE_STATE_ASLEEP);
  }
  EXPECT_OK(stillwake_wake(&shard_, 1, nullptr, nullptr));
  EXPECT_TRUE(holds(content, kSize, 9));
}

TEST_F(Transitions, ATicketTellsWhenAndHow) {
  stillwake_shard* shard_ = shard("s");
  unsigned char* content = block(shard_, kSize, 9);
  EXPECT_OK(stillwake_sleep(&shard_, 1, nullptr, nullptr));
  stillwake_ticket* ticket = nullptr;
  void* legacy = nullptr;
  EXPECT_FAILS(stillwake_wake_on_streams(&shard_, 1, nullptr, 1, nullptr, &ticket), STILLWAKE_INVALID_ARGUMENT,
               "streams is null");
  auto options = sized<stillwake_wake_options>();
  const stillwake_range first = {content + kSize - 100, 100};
  options.first = &first;
  options.first_count = 1;
  ASSERT_OK(stillwake_wake_on_streams(&shard_, 1, &legacy, 1, &options, &ticket));
  EXPECT_OK(stillwake_ticket_wait_range(ticket, nullptr, content, 100));
  EXPECT_EQ(stillwake_ticket_wait_range(ticket, nullptr, &options, 1), STILLWAKE_INVALID_ARGUMENT);
  EXPECT_OK(stillwake_ticket_wait(ticket, nullptr));
  stillwake_report* report = nullptr;
  ASSERT_OK(stillwake_ticket_result(ticket, &report));
  EXPECT_EQ(figures(report).verified, 1);
  EXPECT_OK(stillwake_report_release(report));
  EXPECT_OK(stillwake_ticket_result(ticket, nullptr)) << "any number of times";
  bool done = false;
  EXPECT_OK(stillwake_ticket_is_done(ticket, &done));
  EXPECT_TRUE(done);
  EXPECT_TRUE(holds(content, kSize, 9));
  EXPECT_FAILS(stillwake_driver_close(driver_), STILLWAKE_BUSY, "2 shards, staged halves and tickets");
  EXPECT_OK(stillwake_ticket_release(ticket));
}

TEST_F(Transitions, HalvesCommitOrAreAbandonedOnce) {
  stillwake_shard* shard_ = shard("s");
  unsigned char* content = block(shard_, kSize, 3);
  stillwake_staged_sleep* sleep = nullptr;
  ASSERT_OK(stillwake_stage_sleep(&shard_, 1, nullptr, &sleep));
  EXPECT_EQ(state(shard_), STILLWAKE_STATE_STAGED_SLEEP);
  EXPECT_OK(stillwake_staged_sleep_abandon(sleep));
  EXPECT_EQ(state(shard_), STILLWAKE_STATE_AWAKE);
  EXPECT_FAILS(stillwake_staged_sleep_commit(sleep, nullptr), STILLWAKE_INVALID_ARGUMENT, "is spent");
  EXPECT_FAILS(stillwake_staged_sleep_abandon(sleep), STILLWAKE_INVALID_ARGUMENT, "is spent");
  EXPECT_OK(stillwake_staged_sleep_release(sleep));

  ASSERT_OK(stillwake_stage_sleep(&shard_, 1, nullptr, &sleep));
  EXPECT_OK(stillwake_staged_sleep_release(sleep)); // not spent: abandons
  EXPECT_EQ(state(shard_), STILLWAKE_STATE_AWAKE);
  EXPECT_TRUE(holds(content, kSize, 3));

  ASSERT_OK(stillwake_stage_sleep(&shard_, 1, nullptr, &sleep));
  stillwake_report* report = nullptr;
  ASSERT_OK(stillwake_staged_sleep_commit(sleep, &report));
  EXPECT_GE(figures(report).freed, 6ULL << 20);
  EXPECT_OK(stillwake_report_release(report));
  EXPECT_OK(stillwake_staged_sleep_release(sleep));
  EXPECT_EQ(state(shard_), STILLWAKE_STATE_ASLEEP);

  stillwake_staged_wake* wake = nullptr;
  stillwake_ticket* ticket = nullptr;
  ASSERT_OK(stillwake_stage_wake(&shard_, 1, nullptr, &wake));
  EXPECT_EQ(state(shard_), STILLWAKE_STATE_STAGED_WAKE);
  EXPECT_OK(stillwake_staged_wake_abandon(wake));
  EXPECT_EQ(state(shard_), STILLWAKE_STATE_ASLEEP);
  EXPECT_FAILS(stillwake_staged_wake_commit(wake, nullptr, 0, &ticket), STILLWAKE_INVALID_ARGUMENT, "is spent");
  EXPECT_OK(stillwake_staged_wake_release(wake));
  ASSERT_OK(stillwake_stage_wake(&shard_, 1, nullptr, &wake));
  ASSERT_OK(stillwake_staged_wake_commit(wake, nullptr, 0, &ticket));
  EXPECT_OK(stillwake_ticket_result(ticket, nullptr));
  EXPECT_OK(stillwake_ticket_release(ticket));
  EXPECT_OK(stillwake_staged_wake_release(wake));
  EXPECT_TRUE(holds(content, kSize, 3));
}

TEST_F(Transitions, TheHostCopyIsReadAndWritten) {
  auto options = sized<stillwake_shard_options>();
  options.host_copy = STILLWAKE_HOST_COPY_READABLE;
  stillwake_shard* shard_ = shard("readable", options);
  unsigned char* content = block(shard_, kSize, 6);
  EXPECT_OK(stillwake_shard_prepare(shard_, STILLWAKE_PREPARE_FOREGROUND));
  void* host = nullptr;
  EXPECT_EQ(stillwake_shard_host_address(shard_, content, &host), STILLWAKE_BUSY) << "awake";
  EXPECT_OK(stillwake_sleep(&shard_, 1, nullptr, nullptr));
  ASSERT_OK(stillwake_shard_host_address(shard_, content + 10, &host));
  EXPECT_EQ(*static_cast<unsigned char*>(host), 6);
  *static_cast<unsigned char*>(host) = 77;
  EXPECT_OK(stillwake_shard_mark_host_dirty(shard_, content + 10, 1));
  EXPECT_OK(stillwake_wake(&shard_, 1, nullptr, nullptr));
  EXPECT_EQ(content[10], 77);
  EXPECT_EQ(content[11], 6);
  std::uint64_t trimmed = 0;
  EXPECT_OK(stillwake_shard_trim(shard_, &trimmed));
  EXPECT_GE(trimmed, 6ULL << 20);
  EXPECT_OK(stillwake_shard_trim(shard_, nullptr));
}

} // namespace
} // namespace stillwake::c_api_test
