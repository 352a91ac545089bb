// SPDX-License-Identifier: Apache-2.0
// What a shard's owner plugs in through C functions.
#include "tests/c_api/emulated_driver.h"

namespace stillwake::c_api_test {
namespace {

class Owner : public EmulatedDriver {
protected:
  static constexpr std::size_t kPage = 2 << 20;

  stillwake_shard* owned() {
    auto owner = sized<stillwake_owner>(); // gone when the shard is used: it is copied
    owner.context = this;
    owner.live_ranges = [](void* context, stillwake_live_ranges* ranges) {
      auto& test = *static_cast<Owner*>(context);
      if (test.tells_) {
        test.add_status_ = stillwake_live_ranges_add(ranges, test.tells_block_, 0, test.live_bytes_);
      }
      if (test.forgets_the_block_) {
        stillwake_live_ranges_add(ranges, nullptr, 0, 1);
      }
    };
    owner.is_capturing = [](void* context, std::int32_t device) {
      static_cast<Owner*>(context)->device_ = device;
      return static_cast<Owner*>(context)->capturing_;
    };
    owner.memory_is_short = [](void* context, std::int32_t, std::uint64_t needed) {
      auto& test = *static_cast<Owner*>(context);
      test.needed_ = needed;
      return test.hoard_ != nullptr && stillwake_shard_destroy(std::exchange(test.hoard_, nullptr)) == STILLWAKE_OK;
    };
    auto options = sized<stillwake_shard_options>();
    options.owner = &owner;
    return shard("owned", options);
  }
  std::uint64_t live_of_sleep(stillwake_shard* shard) {
    stillwake_report* report = nullptr;
    EXPECT_OK(stillwake_sleep(&shard, 1, nullptr, &report));
    const std::uint64_t live = report == nullptr ? 0 : figures(report).live;
    EXPECT_OK(stillwake_report_release(report));
    EXPECT_OK(stillwake_wake(&shard, 1, nullptr, nullptr));
    return live;
  }

  bool tells_ = false;
  bool forgets_the_block_ = false;
  const void* tells_block_ = nullptr;
  std::uint64_t live_bytes_ = 0;
  stillwake_status add_status_ = -1;
  std::int32_t capturing_ = -1;
  std::int32_t device_ = -1;
  std::uint64_t needed_ = 0;
  stillwake_shard* hoard_ = nullptr;
};

TEST_F(Owner, LiveRangesDecideWhatIsKept) {
  stillwake_shard* shard_ = owned();
  tells_block_ = block(shard_, 4 * kPage, 1);
  EXPECT_EQ(live_of_sleep(shard_), 4 * kPage) << "not named: live as a whole";
  tells_ = true;
  live_bytes_ = kPage + 1;
  EXPECT_EQ(live_of_sleep(shard_), 2 * kPage);
  EXPECT_EQ(add_status_, STILLWAKE_OK);
  live_bytes_ = 0;
  EXPECT_EQ(live_of_sleep(shard_), 0U) << "named without a range: nothing is live";
  forgets_the_block_ = true;
  EXPECT_EQ(live_of_sleep(shard_), 4 * kPage) << "an addition failed: all is live";
}

TEST_F(Owner, ACaptureRefusesASleep) {
  stillwake_shard* shard_ = owned();
  block(shard_, 10, 1);
  capturing_ = 1;
  EXPECT_EQ(stillwake_sleep(&shard_, 1, nullptr, nullptr), STILLWAKE_BUSY);
  EXPECT_EQ(device_, 0);
  capturing_ = 0;
  EXPECT_OK(stillwake_sleep(&shard_, 1, nullptr, nullptr));
}

TEST_F(Owner, IsAskedForMemoryBeforeAWakeFails) {
  stillwake_shard* shard_ = owned();
  unsigned char* content = block(shard_, 50 * kPage, 8);
  EXPECT_OK(stillwake_sleep(&shard_, 1, nullptr, nullptr));
  stillwake_shard* other = shard("hoard");
  block(other, 100 * kPage, 1);
  EXPECT_EQ(stillwake_wake(&shard_, 1, nullptr, nullptr), STILLWAKE_OUT_OF_DEVICE_MEMORY);
  EXPECT_GT(needed_, 0U);
  EXPECT_EQ(state(shard_), STILLWAKE_STATE_ASLEEP);
  hoard_ = other;
  shards_.pop_back();
  EXPECT_OK(stillwake_wake(&shard_, 1, nullptr, nullptr));
  EXPECT_EQ(hoard_, nullptr);
  EXPECT_TRUE(holds(content, 50 * kPage, 8));
}

} // namespace
} // namespace stillwake::c_api_test
