// SPDX-License-Identifier: Apache-2.0
#include "allocator/transfer/page_ranges.h"

#include <gtest/gtest.h>

#include <vector>

namespace stillwake {
namespace {

struct Sent {
  std::size_t first_task;
  std::uint64_t pages;
  friend bool operator==(const Sent&, const Sent&) = default;
};

class PageRangesTest : public ::testing::Test {
protected:
  static DeviceAddress device(std::uint64_t page) { return DeviceAddress(1ull << 40) + Bytes(Pages(page)); }
  static std::byte* host(std::uint64_t page) {
    return reinterpret_cast<std::byte*>((1ull << 30) + page * kPageBytes.count());
  }
  auto ranges() {
    return PageRanges([this](const TransferRange& range) -> Result<void> {
      sent.push_back({range.first_task, range.pages.count()});
      return {};
    });
  }
  std::vector<Sent> sent;
};

TEST_F(PageRangesTest, JoinsNeighboursUpTo256MiB) {
  auto ranges = this->ranges();
  for (std::size_t page = 0; page < 300; ++page) {
    ASSERT_TRUE(ranges.add(device(page), host(page), 0, page));
  }
  ASSERT_TRUE(ranges.flush());
  ASSERT_TRUE(ranges.flush());
  EXPECT_EQ(sent, (std::vector<Sent>{{0, 128}, {128, 128}, {256, 44}}));
}

TEST_F(PageRangesTest, CutsWhereEitherSideOrThePieceChanges) {
  auto ranges = this->ranges();
  ASSERT_TRUE(ranges.add(device(0), host(0), 0, 0));
  ASSERT_TRUE(ranges.add(device(1), host(1), 0, 1));
  ASSERT_TRUE(ranges.add(device(3), host(2), 0, 2)); // gap on the device
  ASSERT_TRUE(ranges.add(device(4), host(4), 0, 3)); // gap on the host
  ASSERT_TRUE(ranges.add(device(5), host(5), 1, 4)); // another piece
  ASSERT_TRUE(ranges.add(device(4), host(6), 1, 5)); // backwards
  ASSERT_TRUE(ranges.flush());
  EXPECT_EQ(sent, (std::vector<Sent>{{0, 2}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}));
}

TEST_F(PageRangesTest, PagesWithoutAHostSideJoinByTheDeviceAlone) {
  auto ranges = this->ranges();
  ASSERT_TRUE(ranges.add(device(0), nullptr, 0, 0));
  ASSERT_TRUE(ranges.add(device(1), nullptr, 0, 1));
  ASSERT_TRUE(ranges.add(device(2), host(2), 0, 2));
  ASSERT_TRUE(ranges.add(device(3), nullptr, 0, 3));
  ASSERT_TRUE(ranges.flush());
  EXPECT_EQ(sent, (std::vector<Sent>{{0, 2}, {2, 1}, {3, 1}}));
}

TEST_F(PageRangesTest, AnErrorOfSendingComesBack) {
  PageRanges ranges([](const TransferRange&) -> Result<void> { return failure(ErrorCode::kBusy, "no"); });
  ASSERT_TRUE(ranges.add(device(0), host(0), 0, 0));
  EXPECT_EQ(ranges.add(device(5), host(5), 0, 1).error().code, ErrorCode::kBusy);
}

} // namespace
} // namespace stillwake
