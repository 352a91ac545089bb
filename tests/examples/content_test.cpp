// SPDX-License-Identifier: Apache-2.0
// What the examples prove rests on Content: that it writes all of it, and that it sees a single wrong byte. Emulated
// device memory is ordinary memory, so the test looks at it and spoils it by hand.
#include "examples/content.h"

#include <gtest/gtest.h>

namespace example {
namespace {

using stillwake::Bytes;

class ContentTest : public testing::Test {
protected:
  void SetUp() override {
    stillwake::DriverOptions options;
    options.kind = stillwake::DriverKind::kEmulated;
    options.emulated_memory = stillwake::kMiB * 512;
    auto driver = stillwake::Driver::open(options);
    ASSERT_TRUE(driver) << driver.error().describe();
    driver_.emplace(*std::move(driver));
    auto content = Content::open(*driver_, stillwake::DeviceIndex(0), 3);
    ASSERT_TRUE(content) << content.error().describe();
    content_.emplace(*std::move(content));
    auto memory = NeighbourMemory::take(*driver_, stillwake::DeviceIndex(0), Bytes(host_.size()));
    ASSERT_TRUE(memory) << memory.error().describe();
    memory_.emplace(*std::move(memory));
    for (std::size_t i = 0; i < host_.size(); ++i) {
      host_[i] = static_cast<std::byte>(i * 31 + i / 4099);
    }
  }
  std::byte* device() const { return static_cast<std::byte*>(memory_->pointer()); }
  /// Pieces of odd sizes that fill the memory: many in one buffer, and one over several.
  std::vector<Piece> pieces() const {
    std::vector<Piece> pieces;
    std::size_t at = 0;
    for (const std::size_t size : {1UL, 4095UL, 513UL, 70'000'001UL, 3UL}) {
      pieces.push_back({device() + at, host_.data() + at, Bytes(size)});
      at += size;
    }
    pieces.push_back({device() + at, host_.data() + at, Bytes(host_.size() - at)});
    return pieces;
  }

  std::vector<std::byte> host_ = std::vector<std::byte>(80'000'000);
  std::optional<stillwake::Driver> driver_;
  std::optional<Content> content_;
  std::optional<NeighbourMemory> memory_;
};

TEST_F(ContentTest, WritesEveryByteAndSeesEveryWrongOne) {
  ASSERT_TRUE(content_->write(pieces()));
  EXPECT_TRUE(std::equal(host_.begin(), host_.end(), device()));
  EXPECT_EQ(content_->count_different(pieces()).value(), 0U);
  for (const std::size_t at : {std::size_t{0}, std::size_t{4096}, std::size_t{50'000'000}, host_.size() - 1}) {
    device()[at] ^= std::byte{1};
    EXPECT_EQ(content_->count_different(pieces()).value(), 1U) << at;
    device()[at] ^= std::byte{1};
  }
}

TEST_F(ContentTest, AKeyChangesEveryByte) {
  ASSERT_TRUE(content_->write(pieces(), 7));
  EXPECT_EQ(device()[12345], host_[12345] ^ std::byte{7});
  EXPECT_EQ(content_->count_different(pieces(), 7).value(), 0U);
  EXPECT_EQ(content_->count_different(pieces()).value(), host_.size());
}

TEST_F(ContentTest, TheBusIsMeasuredAndItsMemoryGivenBack) {
  const auto before = driver_->memory(stillwake::DeviceIndex(0)).value();
  const auto bus = content_->measure_bus(*driver_, stillwake::DeviceIndex(0));
  ASSERT_TRUE(bus) << bus.error().describe();
  EXPECT_GT(bus->to_host, 0);
  EXPECT_GT(bus->to_device, 0);
  EXPECT_EQ(driver_->memory(stillwake::DeviceIndex(0)).value().free, before.free);
}

} // namespace
} // namespace example
