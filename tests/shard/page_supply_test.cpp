// SPDX-License-Identifier: Apache-2.0
// A wake takes the memory of most pages while the first ones are copied. Whatever happens in between, it is all or
// nothing.
#include "shard/page_supply.h"

#include "tests/shard/shard_fixture.h"

#include <array>

namespace stillwake {
namespace {

// In chunks of 64 MiB the first two handles are for the first chunk, the others for the second.
constexpr Bytes kChunk = kMiB * 64;
constexpr std::array kSizes = {kMiB * 60, kMiB * 6, kMiB * 2, kMiB * 4};
constexpr Bytes kAll = kMiB * 72;

/// A shard that sleeps with four blocks, each on a handle of its own: a wake creates memory four times.
class PageSupplies : public ShardTest {
protected:
  void SetUp() override {
    open(2, kMiB * 128);
    shard_.emplace(make_shard());
    for (const Bytes size : kSizes) {
      blocks_.push_back(allocate(*shard_, size, nullptr, BlockKind::kOneHandle));
      fill(blocks_.back(), blocks_.size(), size);
    }
    ASSERT_OK(sleep({&*shard_}));
    free_ = free_memory();
    options_.chunk = kChunk;
  }
  void TearDown() override {
    gate().arm({});
    shard_.reset();
    ShardTest::TearDown();
  }

  void arm(CallId call, std::uint64_t nth, CUresult error) { gate().arm({Fault{call, nth, error, false}}); }
  void expect_asleep_with_nothing_held() {
    EXPECT_EQ(shard_->state(), ShardState::kAsleep);
    EXPECT_EQ(shard_->stats().mapped, Bytes(0));
    EXPECT_EQ(shard_->stats().handles, 0u);
    expect_free_at_least(free_);
  }
  void expect_content() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      EXPECT_TRUE(holds(blocks_[i], i + 1, kSizes[i])) << "block " << i;
    }
    shard_->core().check_invariants();
  }
  static void expect_a_report_of_one_wake(const Report& report) {
    EXPECT_EQ(report.copied, kAll);
    EXPECT_EQ(report.mapped, kAll);
    EXPECT_EQ(report.host_pinned, kAll);
    EXPECT_TRUE(report.verified);
    std::vector<std::string> names;
    for (const ReportStep& step : report.steps) {
      names.push_back(step.name);
      EXPECT_LE(step.took, report.took) << step.name;
    }
    EXPECT_EQ(names, (std::vector<std::string>{"plan", "create", "map", "queue", "restore"}));
  }

  std::optional<Shard> shard_;
  std::vector<void*> blocks_;
  Bytes free_;
  WakeOptions options_;
};

TEST_F(PageSupplies, TheFirstCopiesAreOnTheirWayBeforeTheThirdHandleIsCreated) {
  const std::uint64_t before = gate().calls(CallId::cuMemcpyHtoDAsync);
  arm(CallId::cuMemCreate, 3, CUDA_ERROR_UNKNOWN);
  const auto failed = wake({&*shard_}, options_);
  EXPECT_CODE(failed, ErrorCode::kDriverCallFailed);
  EXPECT_EQ(failed.error().driver_error, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(gate().calls(CallId::cuMemcpyHtoDAsync) - before, 1u) << "the first chunk, as one copy";
  expect_asleep_with_nothing_held();
  gate().arm({});
  const auto report = wake({&*shard_}, options_);
  ASSERT_OK(report);
  expect_a_report_of_one_wake(*report);
  expect_content();
}

TEST_F(PageSupplies, MemoryThatIsShortAfterAllIsTakenAsAWholeBeforeTheNextCopy) {
  const std::uint64_t before = gate().calls(CallId::cuMemCreate);
  arm(CallId::cuMemCreate, 3, CUDA_ERROR_OUT_OF_MEMORY);
  const auto report = wake({&*shard_}, options_);
  ASSERT_OK(report);
  EXPECT_EQ(gate().injected(), 1u);
  EXPECT_EQ(gate().calls(CallId::cuMemCreate) - before, 3 + kSizes.size());
  expect_a_report_of_one_wake(*report);
  expect_content();
}

TEST_F(PageSupplies, WhatCouldNotBeUnmappedInBetweenIsUsedByTheSameWake) {
  gate().arm({Fault{CallId::cuMemCreate, 4, CUDA_ERROR_OUT_OF_MEMORY, false},
              Fault{CallId::cuMemUnmap, 2, CUDA_ERROR_UNKNOWN, false}});
  const auto report = wake({&*shard_}, options_);
  ASSERT_OK(report);
  EXPECT_EQ(gate().injected(), 2u);
  EXPECT_EQ(report->mapped, kAll - kSizes[1]) << "that block was backed already";
  EXPECT_EQ(shard_->stats().handles, kSizes.size());
  expect_content();
}

TEST_F(PageSupplies, AFailedMappingLeavesTheCopiesBeforeItWithoutEffect) {
  arm(CallId::cuMemSetAccess, 4, CUDA_ERROR_UNKNOWN);
  EXPECT_CODE(wake({&*shard_}, options_), ErrorCode::kDriverCallFailed);
  expect_asleep_with_nothing_held();
  gate().arm({});
  ASSERT_OK(wake({&*shard_}, options_));
  expect_content();
}

TEST_F(PageSupplies, OneOfTwoDevicesFailingTakesTheCopiesOfBothBack) {
  ShardOptions elsewhere;
  elsewhere.name = "elsewhere";
  elsewhere.device = DeviceIndex(1);
  if (driver_->device_count() < 2) {
    GTEST_SKIP() << "needs two devices";
  }
  Shard other = make_shard(elsewhere);
  void* block = allocate(other, kMiB);
  write(block, content(77, kMiB), 1);
  ASSERT_OK(sleep({&other}));
  // Of the first device come two handles, then all of the second one's, then the other two of the first.
  for (const std::uint64_t nth : {3, 4}) {
    const std::uint64_t before = gate().calls(CallId::cuMemcpyHtoDAsync);
    arm(CallId::cuMemCreate, nth, CUDA_ERROR_UNKNOWN);
    EXPECT_CODE(wake({&*shard_, &other}, options_), ErrorCode::kDriverCallFailed);
    EXPECT_EQ(gate().calls(CallId::cuMemcpyHtoDAsync) - before, nth - 2) << "each bus is busy as early as can be";
    expect_asleep_with_nothing_held();
    EXPECT_EQ(other.state(), ShardState::kAsleep);
    gate().arm({});
  }
  ASSERT_OK(wake({&*shard_, &other}, options_));
  expect_content();
  EXPECT_TRUE(holds(block, 77, kMiB, 1));
}

using PageSupplyPieces = ShardTest;

TEST_F(PageSupplyPieces, AreAsLargeAsTheLargestExtentAndComeOnce) {
  open(1, kMiB * 1024);
  Shard large = make_shard("large");
  const Pages most = kLargestExtent;
  const MappedRun long_run{{Pages(2), most + Pages(3)}, BlockKind::kShared};
  const MappedRun on_one_handle{{Pages(1) + long_run.pages.end(), Pages(5)}, BlockKind::kOneHandle};
  PageSupply supply(large.core(), {long_run, on_one_handle});
  std::vector<Extent> extents;
  ASSERT_OK(supply.supply(Pages(0), extents)); // was never missing
  ASSERT_OK(supply.supply(long_run.pages.end(), extents));
  EXPECT_TRUE(extents.empty());
  ASSERT_OK(supply.supply(on_one_handle.pages.first + Pages(4), extents));
  ASSERT_OK(supply.supply(Pages(2) + most, extents)); // the last piece of the long run
  ASSERT_OK(supply.supply(Pages(4) + most, extents)); // there by now
  ASSERT_EQ(extents.size(), 2u);
  EXPECT_EQ(extents[0].pages, on_one_handle.pages);
  EXPECT_EQ(extents[1].pages, (PageRange{Pages(2) + most, Pages(3)}));
  EXPECT_FALSE(supply.is_complete());
  ASSERT_OK(supply.supply_rest(extents));
  ASSERT_EQ(extents.size(), 3u);
  EXPECT_EQ(extents[2].pages, (PageRange{Pages(2), most}));
  EXPECT_TRUE(supply.is_complete());
  EXPECT_EQ(supply.pages(), most + Pages(8));
  ASSERT_OK(supply.supply_rest(extents)); // nothing is left
  EXPECT_EQ(extents.size(), 3u);
  large.core().extents().take_back(std::move(extents));
  EXPECT_EQ(large.stats().handles, 0u);
}

TEST_F(PageSupplyPieces, TheRestIsCreatedAsAWholeBeforeItIsMappedInOneGo) {
  open(1, kMiB * 2048);
  Shard large = make_shard("large");
  const Pages most = kLargestExtent;
  PageSupply supply(large.core(), {{{Pages(0), most + most + most}, BlockKind::kShared}});
  std::vector<Extent> extents;
  ASSERT_OK(supply.supply(Pages(0), extents));
  const std::uint64_t mapped = gate().calls(CallId::cuMemMap), allowed = gate().calls(CallId::cuMemSetAccess);
  gate().arm({Fault{CallId::cuMemCreate, 2, CUDA_ERROR_UNKNOWN, false}});
  EXPECT_CODE(supply.supply_rest(extents), ErrorCode::kDriverCallFailed);
  gate().arm({});
  EXPECT_EQ(gate().calls(CallId::cuMemMap), mapped);
  EXPECT_FALSE(supply.is_complete());
  EXPECT_EQ(extents.size(), 1u);
  ASSERT_OK(supply.supply_rest(extents));
  EXPECT_EQ(gate().calls(CallId::cuMemMap) - mapped, 2u);
  EXPECT_EQ(gate().calls(CallId::cuMemSetAccess) - allowed, 1u);
  EXPECT_TRUE(supply.is_complete());
  EXPECT_EQ(extents.size(), 3u);
  large.core().extents().take_back(std::move(extents));
  EXPECT_EQ(large.stats().handles, 0u);
}

} // namespace
} // namespace stillwake
