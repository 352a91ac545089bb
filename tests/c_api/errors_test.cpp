// SPDX-License-Identifier: Apache-2.0
// The status numbers, the sentence of a thread's last failure, and what opening a driver refuses.
#include "tests/c_api/emulated_driver.h"

#include <thread>

namespace stillwake::c_api_test {
namespace {

class Errors : public EmulatedDriver {};

TEST_F(Errors, TheLastSentenceBelongsToItsThreadAndOutlivesASuccess) {
  EXPECT_FAILS(stillwake_shard_free(nullptr, nullptr), STILLWAKE_INVALID_ARGUMENT, "shard is null");
  const std::string before = stillwake_last_error();
  std::thread([] {
    EXPECT_STREQ(stillwake_last_error(), "");
    EXPECT_FAILS(stillwake_driver_close(nullptr), STILLWAKE_INVALID_ARGUMENT, "driver is null");
  }).join();
  std::uint64_t bytes = 0;
  EXPECT_OK(stillwake_host_pinned(driver_, &bytes));
  EXPECT_EQ(stillwake_last_error(), before);
}

TEST_F(Errors, AFailedDriverCallIsNamed) {
  auto options = sized<stillwake_driver_options>();
  options.kind = STILLWAKE_DRIVER_EMULATED;
  options.emulated_memory = 256ULL << 20;
  options.faults = "cuMemCreate:1+";
  stillwake_driver* faulty = nullptr;
  ASSERT_OK(stillwake_driver_open(&options, &faulty));
  auto shard_options = sized<stillwake_shard_options>();
  shard_options.name = "s";
  stillwake_shard* shard = nullptr;
  ASSERT_OK(stillwake_shard_create(faulty, &shard_options, &shard));
  void* pointer = &options;
  EXPECT_EQ(stillwake_shard_allocate(shard, 100, nullptr, STILLWAKE_BLOCK_SHARED, &pointer),
            STILLWAKE_OUT_OF_DEVICE_MEMORY);
  EXPECT_EQ(pointer, &options) << "nothing is written on failure";
  EXPECT_EQ(stillwake_last_driver_error(), 2);
  EXPECT_STREQ(stillwake_last_driver_call(), "cuMemCreate");
  EXPECT_NE(std::string(stillwake_last_error()).find("injected"), std::string::npos) << stillwake_last_error();
  EXPECT_FAILS(stillwake_shard_free(shard, &options), STILLWAKE_INVALID_ARGUMENT, "");
  EXPECT_EQ(stillwake_last_driver_error(), 0);
  EXPECT_STREQ(stillwake_last_driver_call(), "");
  EXPECT_OK(stillwake_shard_destroy(shard));
  EXPECT_OK(stillwake_driver_close(faulty));
}

TEST_F(Errors, OpeningRefusesWrongOptions) {
  stillwake_driver* driver = nullptr;
  auto options = sized<stillwake_driver_options>();
  options.kind = 3;
  EXPECT_FAILS(stillwake_driver_open(&options, &driver), STILLWAKE_INVALID_ARGUMENT, "kind is 3");
  options.kind = STILLWAKE_DRIVER_EMULATED;
  options.emulated_devices = -1;
  EXPECT_EQ(stillwake_driver_open(&options, &driver), STILLWAKE_INVALID_ARGUMENT);
  options.emulated_devices = 1;
  options.faults = "cuNothing:1";
  EXPECT_FAILS(stillwake_driver_open(&options, &driver), STILLWAKE_INVALID_ARGUMENT, "cuNothing");
  EXPECT_EQ(driver, nullptr);
}

TEST_F(Errors, TheDriverTellsAboutItself) {
  std::int32_t number = 0;
  EXPECT_OK(stillwake_driver_kind(driver_, &number));
  EXPECT_EQ(number, STILLWAKE_DRIVER_EMULATED);
  EXPECT_OK(stillwake_driver_device_count(driver_, &number));
  EXPECT_EQ(number, 2);
  const char* text = nullptr;
  EXPECT_OK(stillwake_driver_describe(driver_, &text));
  EXPECT_NE(std::string(text).find("emulated driver, 2 devices"), std::string::npos) << text;
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  EXPECT_OK(stillwake_driver_memory(driver_, 1, &free, &total));
  EXPECT_EQ(total, 256ULL << 20);
  EXPECT_EQ(stillwake_driver_memory(driver_, 2, &free, &total), STILLWAKE_INVALID_ARGUMENT);
  EXPECT_EQ(stillwake_driver_memory(driver_, -1, &free, &total), STILLWAKE_INVALID_ARGUMENT);
}

TEST_F(Errors, CountersAndTheLogReachC) {
  block(shard("counted"), 100, 1);
  std::vector<std::string> calls;
  const auto visit = [](void* context, const char* call, std::uint64_t count, std::uint64_t failures) {
    EXPECT_GT(count, 0U);
    EXPECT_EQ(failures, 0U) << call;
    static_cast<std::vector<std::string>*>(context)->emplace_back(call);
  };
  EXPECT_OK(stillwake_driver_counters(driver_, visit, &calls));
  EXPECT_NE(std::find(calls.begin(), calls.end(), "cuMemCreate"), calls.end());

  std::vector<std::string> lines;
  auto options = sized<stillwake_driver_options>();
  options.kind = STILLWAKE_DRIVER_EMULATED;
  options.log = [](void* context, std::int32_t level, const char* text) {
    EXPECT_GE(level, STILLWAKE_LOG_DEBUG);
    EXPECT_LE(level, STILLWAKE_LOG_ERROR);
    static_cast<std::vector<std::string>*>(context)->emplace_back(text);
  };
  options.log_context = &lines;
  stillwake_driver* logging = nullptr;
  ASSERT_OK(stillwake_driver_open(&options, &logging));
  auto shard_options = sized<stillwake_shard_options>();
  shard_options.name = "left behind";
  stillwake_shard* left = nullptr;
  ASSERT_OK(stillwake_shard_create(logging, &shard_options, &left));
  block(left, 100, 1);
  EXPECT_OK(stillwake_shard_destroy(left)); // with a live block, which is logged
  EXPECT_OK(stillwake_driver_close(logging));
  bool is_told = false;
  for (const std::string& line : lines) {
    is_told = is_told || line.find("left behind") != std::string::npos;
  }
  EXPECT_TRUE(is_told);
}

TEST_F(Errors, TheHostBudgetIsHeld) {
  std::uint64_t pinned = 1;
  EXPECT_OK(stillwake_host_pinned(driver_, &pinned));
  EXPECT_EQ(pinned, 0U);
  EXPECT_OK(stillwake_set_pinning_threads(driver_, 1));
  EXPECT_EQ(stillwake_set_pinning_threads(driver_, -1), STILLWAKE_INVALID_ARGUMENT);
  EXPECT_EQ(stillwake_set_pinning_threads(driver_, 257), STILLWAKE_INVALID_ARGUMENT);
  stillwake_shard* kept = shard("kept");
  unsigned char* content = block(kept, 10 << 20, 7);
  EXPECT_OK(stillwake_set_host_budget(driver_, 4 << 20));
  EXPECT_EQ(stillwake_sleep(&kept, 1, nullptr, nullptr), STILLWAKE_OVER_BUDGET);
  EXPECT_EQ(state(kept), STILLWAKE_STATE_AWAKE);
  EXPECT_TRUE(holds(content, 10 << 20, 7));
  EXPECT_OK(stillwake_set_host_budget(driver_, STILLWAKE_NO_BUDGET));
  EXPECT_OK(stillwake_sleep(&kept, 1, nullptr, nullptr));
  EXPECT_OK(stillwake_host_pinned(driver_, &pinned));
  EXPECT_GE(pinned, std::uint64_t{10 << 20});
}

} // namespace
} // namespace stillwake::c_api_test
