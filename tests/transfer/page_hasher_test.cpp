// SPDX-License-Identifier: Apache-2.0
// The kernel against its CPU twin, bit for bit, on whichever driver runs.
#include "allocator/transfer/kernel_twins.h"
#include "tests/transfer/transfer_fixture.h"

namespace stillwake {
namespace {

class PageHasherTest : public TransferTest {};

TEST_F(PageHasherTest, GivesTheTwinsBits) {
  ASSERT_TRUE(engine_->has_kernels());
  const DeviceRegion region = make_device_region(7);
  write_all(region, {1, 0, 2, 3, 0, 4, 5});
  Content sparse = zero_content();
  sparse[262143] = 1ull << 63;
  write(region.at(4), sparse);
  // Neighbours, gaps, backwards, twice the same.
  const std::vector<std::size_t> order = {0, 1, 2, 4, 6, 5, 3, 3};
  std::vector<DeviceAddress> pages;
  for (const std::size_t page : order) {
    pages.push_back(region.at(page));
  }
  const Result<std::vector<PageDigest>> digests = engine_->digest(pages);
  ASSERT_TRUE(digests) << digests.error().describe();
  ASSERT_EQ(digests->size(), order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ((*digests)[i], digest_of_page(read(region.at(order[i])).data(), engine_->seed())) << i;
  }
}

// More runs than one launch takes, more pages than one batch takes.
TEST_F(PageHasherTest, TakesAnyNumberOfRunsAndPages) {
  const DeviceRegion region = make_device_region(4);
  write_all(region, {1, 2, 3, 4});
  std::vector<PageDigest> expected;
  for (std::size_t page = 0; page < 4; ++page) {
    expected.push_back(digest_of_page(read(region.at(page)).data(), engine_->seed()));
  }
  std::vector<DeviceAddress> pages;
  for (std::size_t i = 0; i < 1500; ++i) {
    pages.push_back(region.at(i * i % 4 + i / 700 % 3));
  }
  const Result<std::vector<PageDigest>> digests = engine_->digest(pages);
  ASSERT_TRUE(digests) << digests.error().describe();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    ASSERT_EQ((*digests)[i], expected[i * i % 4 + i / 700 % 3]) << i;
  }
}

TEST_F(PageHasherTest, NothingToHashIsNoError) {
  const Result<std::vector<PageDigest>> digests = engine_->digest({});
  ASSERT_TRUE(digests);
  EXPECT_TRUE(digests->empty());
}

TEST_F(PageHasherTest, TwoEnginesGiveEqualDigests) {
  const DeviceRegion region = make_device_region(1);
  write_all(region, {9});
  const std::unique_ptr<TransferEngine> other = open_engine();
  const std::vector<DeviceAddress> pages = {region.at(0)};
  EXPECT_EQ(*engine_->digest(pages), *other->digest(pages));
}

TEST_F(PageHasherTest, WithoutDeviceCodeDigestsAreRefusedByName) {
  driver_->gate().arm({{CallId::cuModuleLoadData, 1}});
  const std::unique_ptr<TransferEngine> engine = open_engine();
  driver_->gate().arm({});
  ASSERT_NE(engine, nullptr);
  EXPECT_FALSE(engine->has_kernels());
  const DeviceRegion region = make_device_region(1);
  const std::vector<DeviceAddress> pages = {region.at(0)};
  const Result<std::vector<PageDigest>> digests = engine->digest(pages);
  ASSERT_FALSE(digests);
  EXPECT_EQ(digests.error().code, ErrorCode::kDriverCallFailed);
}

TEST_F(PageHasherTest, AFullOrLostDeviceIsNotOneWithoutDeviceCode) {
  driver_->gate().arm({{CallId::cuModuleLoadData, 1, CUDA_ERROR_OUT_OF_MEMORY}});
  EXPECT_EQ(TransferEngine::open(*device_, emulation()).error().code, ErrorCode::kOutOfDeviceMemory);
  driver_->gate().arm({{CallId::cuModuleLoadData, 1, CUDA_ERROR_ILLEGAL_ADDRESS}});
  EXPECT_EQ(TransferEngine::open(*device_, emulation()).error().code, ErrorCode::kLost);
  driver_->gate().arm({});
}

} // namespace
} // namespace stillwake
