// SPDX-License-Identifier: Apache-2.0
// What the C calls answer in a child made by fork.
#include "tests/base/forked_child.h"
#include "tests/c_api/emulated_driver.h"

namespace stillwake::c_api_test {
namespace {

class Fork : public EmulatedDriver {
protected:
  void SetUp() override {
    EmulatedDriver::SetUp();
    if (!kCanFork) {
      GTEST_SKIP() << "the thread sanitizer has locks of its own, which a fork among threads leaves held";
    }
  }
};

TEST_F(Fork, FiguresAndSettingsAreLost) {
  stillwake_shard* weights = shard("weights");
  block(weights, 1 << 20, 5);
  EXPECT_TRUE(holds_in_child([&] {
    auto stats = sized<stillwake_shard_stats>();
    std::uint64_t bytes = 0, total = 0;
    return stillwake_shard_stats_get(weights, &stats) == STILLWAKE_LOST &&
           stillwake_host_pinned(driver_, &bytes) == STILLWAKE_LOST &&
           stillwake_set_host_budget(driver_, 1 << 20) == STILLWAKE_LOST &&
           stillwake_set_pinning_threads(driver_, 1) == STILLWAKE_LOST &&
           stillwake_driver_memory(driver_, 0, &bytes, &total) == STILLWAKE_LOST &&
           stillwake_shard_prepare(weights, STILLWAKE_PREPARE_BACKGROUND) == STILLWAKE_LOST &&
           stillwake_sleep(&weights, 1, nullptr, nullptr) == STILLWAKE_LOST && state(weights) == STILLWAKE_STATE_LOST;
  }));
}

TEST_F(Fork, StagedHalvesAreLostAndNotSpent) {
  stillwake_shard* weights = shard("weights");
  unsigned char* bytes = block(weights, 1 << 20, 5);
  stillwake_staged_sleep* going = nullptr;
  ASSERT_OK(stillwake_stage_sleep(&weights, 1, nullptr, &going));
  EXPECT_TRUE(holds_in_child([&] {
    return stillwake_staged_sleep_commit(going, nullptr) == STILLWAKE_LOST &&
           stillwake_staged_sleep_abandon(going) == STILLWAKE_LOST &&
           stillwake_staged_sleep_commit(going, nullptr) == STILLWAKE_LOST &&
           stillwake_staged_sleep_release(going) == STILLWAKE_OK;
  }));
  ASSERT_OK(stillwake_staged_sleep_commit(going, nullptr));
  ASSERT_OK(stillwake_staged_sleep_release(going));
  stillwake_staged_wake* coming = nullptr;
  ASSERT_OK(stillwake_stage_wake(&weights, 1, nullptr, &coming));
  stillwake_ticket* ticket = nullptr;
  EXPECT_TRUE(holds_in_child([&] {
    return stillwake_staged_wake_commit(coming, nullptr, 0, &ticket) == STILLWAKE_LOST &&
           stillwake_staged_wake_abandon(coming) == STILLWAKE_LOST &&
           stillwake_staged_wake_release(coming) == STILLWAKE_OK;
  }));
  ASSERT_OK(stillwake_staged_wake_commit(coming, nullptr, 0, &ticket));
  ASSERT_OK(stillwake_staged_wake_release(coming));
  EXPECT_TRUE(holds_in_child([&] {
    bool done = false;
    return stillwake_ticket_wait(ticket, nullptr) == STILLWAKE_LOST &&
           stillwake_ticket_wait_range(ticket, nullptr, bytes, 1) == STILLWAKE_LOST &&
           stillwake_ticket_is_done(ticket, &done) == STILLWAKE_LOST &&
           stillwake_ticket_result(ticket, nullptr) == STILLWAKE_LOST &&
           stillwake_ticket_release(ticket) == STILLWAKE_OK;
  }));
  ASSERT_OK(stillwake_ticket_result(ticket, nullptr));
  ASSERT_OK(stillwake_ticket_release(ticket));
  EXPECT_TRUE(holds(bytes, 1 << 20, 5));
}

} // namespace
} // namespace stillwake::c_api_test
