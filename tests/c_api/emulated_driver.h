// SPDX-License-Identifier: Apache-2.0
// A test with an emulated driver that was opened through the C interface. Its device memory is ordinary memory, so the
// tests write and read blocks by their addresses.
#pragma once

#include "shard/stillwake_c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace stillwake::c_api_test {

#define EXPECT_OK(call) EXPECT_EQ((call), STILLWAKE_OK) << stillwake_last_error()
#define ASSERT_OK(call) ASSERT_EQ((call), STILLWAKE_OK) << stillwake_last_error()
/// The call fails with this status, and the sentence has this part.
#define EXPECT_FAILS(call, status, part)                                                                               \
  do {                                                                                                                 \
    EXPECT_EQ((call), (status)) << stillwake_last_error();                                                             \
    EXPECT_NE(std::string(stillwake_last_error()).find(part), std::string::npos) << stillwake_last_error();            \
  } while (false)

template <class Structure> Structure sized() {
  Structure structure;
  std::memset(&structure, 0, sizeof structure);
  structure.struct_size = sizeof structure;
  return structure;
}

class EmulatedDriver : public testing::Test {
protected:
  void SetUp() override {
    auto options = sized<stillwake_driver_options>();
    options.kind = STILLWAKE_DRIVER_EMULATED;
    options.emulated_devices = 2;
    options.emulated_memory = 256ULL << 20;
    ASSERT_OK(stillwake_driver_open(&options, &driver_));
  }
  void TearDown() override {
    for (stillwake_shard* shard : shards_) {
      EXPECT_OK(stillwake_shard_destroy(shard));
    }
    if (driver_ != nullptr) {
      EXPECT_OK(stillwake_driver_close(driver_));
    }
  }
  /// A shard that the test's end destroys.
  stillwake_shard* shard(const char* name, stillwake_shard_options options = sized<stillwake_shard_options>()) {
    options.name = name;
    stillwake_shard* made = nullptr;
    EXPECT_OK(stillwake_shard_create(driver_, &options, &made));
    shards_.push_back(made);
    return made;
  }
  /// A block of one value.
  static unsigned char* block(stillwake_shard* shard, std::size_t size, unsigned char value) {
    void* pointer = nullptr;
    EXPECT_OK(stillwake_shard_allocate(shard, size, nullptr, STILLWAKE_BLOCK_SHARED, &pointer));
    std::memset(pointer, value, size);
    return static_cast<unsigned char*>(pointer);
  }
  static bool holds(const unsigned char* block, std::size_t size, unsigned char value) {
    return std::vector<unsigned char>(block, block + size) == std::vector<unsigned char>(size, value);
  }
  static std::int32_t state(stillwake_shard* shard) {
    std::int32_t state = -1;
    EXPECT_OK(stillwake_shard_state(shard, &state));
    return state;
  }
  static stillwake_report_figures figures(stillwake_report* report) {
    auto figures = sized<stillwake_report_figures>();
    EXPECT_OK(stillwake_report_figures_get(report, &figures));
    return figures;
  }

  stillwake_driver* driver_ = nullptr;
  std::vector<stillwake_shard*> shards_;
};

} // namespace stillwake::c_api_test
