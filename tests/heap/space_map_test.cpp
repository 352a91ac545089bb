// SPDX-License-Identifier: Apache-2.0
// The map alone: what joins, who may use what, and what growth takes along.
#include "allocator/heap/space_map.h"

#include <gtest/gtest.h>

namespace stillwake {
namespace {

using Who = Safety::Who;

Stream stream_number(std::uintptr_t number) { return reinterpret_cast<Stream>(number * 64); }
const Stream kFirst = stream_number(1);
const Stream kSecond = stream_number(2);

/// Eight pages, the first four backed and cut into blocks of one page each.
class SpaceMapTest : public testing::Test {
protected:
  SpaceMapTest() {
    const auto growth = map.begin_growth(kPageUnits, kFirst, BlockKind::kShared);
    map.end_growth(*growth, Pages(4));
    for (int page = 1; page < 4; ++page) {
      EXPECT_EQ(map.take(kPageUnits, kFirst), page * kPageUnits);
    }
    map.check_invariants();
  }
  ~SpaceMapTest() override { map.check_invariants(); }

  void release(Unit page, Safety safety) { map.release(page * kPageUnits, safety); }
  bool has(Unit pages, Stream stream) {
    const auto start = map.take(pages * kPageUnits, stream);
    if (start) {
      map.release(*start, Safety{Who::kStream, stream, 0});
    }
    return start.has_value();
  }

  SpaceMap map{8 * kPageUnits};
};

TEST_F(SpaceMapTest, FreeSpaceOfOneStreamServesThatStreamOnly) {
  release(1, {Who::kStream, kFirst, 0});
  EXPECT_FALSE(has(1, kSecond));
  EXPECT_TRUE(has(1, kFirst));
}

TEST_F(SpaceMapTest, WhatNobodyMayUseServesNobody) {
  release(1, {Who::kNobody, nullptr, 0});
  EXPECT_FALSE(has(1, kFirst));
  EXPECT_EQ(map.parked_units(), kPageUnits);
  EXPECT_EQ(map.free_units(), 0u);
  map.begin_epoch(7, false);
  EXPECT_FALSE(map.waits_without_epoch(true));
  map.end_epoch(6);
  EXPECT_FALSE(has(1, kFirst));
  map.end_epoch(7);
  EXPECT_TRUE(has(1, kFirst));
}

TEST_F(SpaceMapTest, SpaceOfTwoStreamsJoinsWhenBothAreSafeForAnyone) {
  release(0, {Who::kStream, kFirst, 0});
  release(1, {Who::kStream, kSecond, 0});
  EXPECT_EQ(map.places().size(), 5u);
  EXPECT_FALSE(has(2, kFirst));
  map.begin_epoch(1, true);
  map.end_epoch(1);
  EXPECT_EQ(map.places().size(), 4u);
  EXPECT_TRUE(has(2, kFirst));
}

TEST_F(SpaceMapTest, JoinedSpaceOfOneStreamWaitsForTheLaterEpoch) {
  release(0, {Who::kStream, kFirst, 0});
  map.begin_epoch(1, true);
  release(1, {Who::kStream, kFirst, 0}); // after the event
  EXPECT_TRUE(map.waits_without_epoch(true));
  map.end_epoch(1);
  EXPECT_FALSE(has(1, kSecond));
  map.begin_epoch(2, true);
  release(2, {Who::kStream, kFirst, 0});
  map.begin_epoch(3, true);
  map.end_epoch(2);
  EXPECT_FALSE(has(1, kSecond));
  map.end_epoch(3);
  EXPECT_TRUE(has(3, kSecond));
}

TEST_F(SpaceMapTest, WhatNobodyMayUseDoesNotWaitForItsNeighbour) {
  release(0, {Who::kNobody, nullptr, 1});
  release(1, {Who::kNobody, nullptr, 2});
  map.end_epoch(1);
  EXPECT_TRUE(has(1, kSecond));
  EXPECT_FALSE(has(2, kSecond));
}

TEST_F(SpaceMapTest, GrowthTakesATailOnlyFromItsOwnStream) {
  release(3, {Who::kStream, kFirst, 0});
  const auto other = map.begin_growth(2 * kPageUnits, kSecond, BlockKind::kShared);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->start, 4 * kPageUnits);
  EXPECT_EQ(other->at_least, Pages(2));
  map.abandon_growth(*other);
  map.check_invariants();
  const auto own = map.begin_growth(2 * kPageUnits, kFirst, BlockKind::kShared);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->start, 3 * kPageUnits);
  EXPECT_EQ(own->at_least, Pages(1));
  map.abandon_growth(*own);
  EXPECT_TRUE(has(1, kFirst));
  EXPECT_FALSE(has(1, kSecond));
}

TEST_F(SpaceMapTest, AOneHandleExtentFollowsStreamOrder) {
  const auto growth = map.begin_growth(2 * kPageUnits, kFirst, BlockKind::kOneHandle);
  map.end_growth(*growth, Pages(2));
  map.release(growth->start, {Who::kStream, kFirst, 0});
  EXPECT_FALSE(map.take_one_handle(2 * kPageUnits, kSecond));
  EXPECT_FALSE(map.take_one_handle(kPageUnits, kFirst));
  EXPECT_EQ(map.find_unsafe(2 * kPageUnits, BlockKind::kOneHandle)->start, growth->start);
  map.make_safe_for({growth->start, growth->units}, kSecond, 1);
  EXPECT_EQ(map.take_one_handle(2 * kPageUnits, kSecond), growth->start);
  map.release(growth->start, Safety{});
  map.note_unbacked({Pages(5), Pages(1)});
  EXPECT_FALSE(map.find_unsafe(2 * kPageUnits, BlockKind::kOneHandle));
}

TEST_F(SpaceMapTest, BorrowingTakesNoMoreThanTheBlockNeeds) {
  release(0, {Who::kStream, kFirst, 0});
  release(1, {Who::kNobody, nullptr, 0});
  release(2, {Who::kStream, kFirst, 0});
  const auto range = map.find_unsafe(2 * kPageUnits, BlockKind::kShared);
  ASSERT_TRUE(range);
  EXPECT_EQ(range->start, 0u);
  map.make_safe_for(*range, kSecond, 1);
  EXPECT_TRUE(has(2, kSecond));
  EXPECT_TRUE(has(1, kFirst)); // the third page is still its own
  EXPECT_FALSE(map.find_unsafe(5 * kPageUnits, BlockKind::kShared));
}

} // namespace
} // namespace stillwake
