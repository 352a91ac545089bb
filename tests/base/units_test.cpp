// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>
#include <utility>

namespace stillwake {
namespace {

template <class A, class B, class = void> struct CanAdd : std::false_type {};
template <class A, class B>
struct CanAdd<A, B, std::void_t<decltype(std::declval<A>() + std::declval<B>())>> : std::true_type {};

// What must not compile: mixing units, and making one of a bare number.
static_assert(CanAdd<Bytes, Bytes>::value && CanAdd<Pages, Pages>::value && CanAdd<DeviceAddress, Bytes>::value);
static_assert(!CanAdd<Bytes, Pages>::value && !CanAdd<Pages, Bytes>::value && !CanAdd<Bytes, int>::value);
static_assert(!CanAdd<DeviceAddress, DeviceAddress>::value && !CanAdd<DeviceAddress, Pages>::value);
static_assert(!CanAdd<DeviceIndex, DeviceIndex>::value);
static_assert(!std::is_convertible_v<int, Bytes> && !std::is_convertible_v<std::uint64_t, Pages>);
static_assert(!std::is_convertible_v<Pages, Bytes> && !std::is_convertible_v<Bytes, DeviceAddress>);

TEST(Units, BytesComputeLikeNumbers) {
  Bytes size(5);
  size += Bytes(7);
  size -= Bytes(2);
  EXPECT_EQ(size.count(), 10u);
  EXPECT_EQ((Bytes(10) * 3).count(), 30u);
  EXPECT_EQ((Bytes(10) / 4).count(), 2u);
  EXPECT_EQ(Bytes(10) / Bytes(4), 2u);
  EXPECT_EQ((Bytes(10) % Bytes(4)).count(), 2u);
  EXPECT_LT(Bytes(1), Bytes(2));
  EXPECT_GE(Bytes(2), Bytes(2));
}

TEST(Units, SizesReachBeyondThirtyTwoBits) {
  EXPECT_EQ((kGiB * 140).count(), 150323855360u);
  EXPECT_EQ(Bytes(Pages(71680)).count(), 150323855360u);
}

TEST(Units, PagesHoldAndLieBelow) {
  EXPECT_EQ(pages_holding(Bytes(0)), Pages(0));
  EXPECT_EQ(pages_holding(Bytes(1)), Pages(1));
  EXPECT_EQ(pages_holding(Bytes(2097152)), Pages(1));
  EXPECT_EQ(pages_holding(Bytes(2097153)), Pages(2));
  EXPECT_EQ(pages_holding(Bytes(UINT64_MAX)).count(), 8796093022208u);
  EXPECT_EQ(pages_below(Bytes(2097151)), Pages(0));
  EXPECT_EQ(pages_below(Bytes(2097152)), Pages(1));
}

TEST(Units, RoundUpKeepsMultiplesAndTakesAnyStep) {
  EXPECT_EQ(round_up(Bytes(0), Bytes(512)), Bytes(0));
  EXPECT_EQ(round_up(Bytes(512), Bytes(512)), Bytes(512));
  EXPECT_EQ(round_up(Bytes(513), Bytes(512)), Bytes(1024));
  EXPECT_EQ(round_up(Bytes(10), Bytes(6)), Bytes(12));
}

TEST(Units, PageRangeIsHalfOpen) {
  const PageRange range{Pages(3), Pages(2)};
  EXPECT_EQ(range.end(), Pages(5));
  EXPECT_FALSE(range.contains(Pages(2)));
  EXPECT_TRUE(range.contains(Pages(3)));
  EXPECT_TRUE(range.contains(Pages(4)));
  EXPECT_FALSE(range.contains(Pages(5)));
  EXPECT_TRUE((PageRange{Pages(3), Pages(0)}.empty()));
  EXPECT_NE(range, (PageRange{Pages(3), Pages(3)}));
}

TEST(Units, AddressesMoveByBytesAndHash) {
  int target = 0;
  EXPECT_EQ(DeviceAddress(&target).pointer(), &target);
  const DeviceAddress base(0x7f0000000000);
  EXPECT_EQ((base + Bytes(0x1000)).value(), 0x7f0000001000u);
  EXPECT_EQ((base + Bytes(48)) - base, Bytes(48));
  std::unordered_set<DeviceAddress> seen{base, base + Bytes(1), base};
  EXPECT_EQ(seen.size(), 2u);
}

} // namespace
} // namespace stillwake
