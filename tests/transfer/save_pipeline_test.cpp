// SPDX-License-Identifier: Apache-2.0
// That a save waits for what it must: pieces that are still being pinned, and its own last copy.
#include "tests/transfer/transfer_fixture.h"

#include <atomic>
#include <functional>
#include <thread>

namespace stillwake {
namespace {

class SavePipelineTest : public TransferTest {};

/// Pins nothing; tells when it is asked.
class FakePinningJob final : public PinningJob {
public:
  explicit FakePinningJob(std::function<Result<void>(Pages)> on_wait) : on_wait_(std::move(on_wait)) {}
  Result<void> wait_for(Pages page) override {
    waits.push_back(page);
    return on_wait_(page);
  }
  Result<void> finish() override { return {}; }

  std::vector<Pages> waits;

private:
  std::function<Result<void>(Pages)> on_wait_;
};

TEST_F(SavePipelineTest, CopiesOnePieceWhileTheNextIsBeingPinned) {
  const DeviceRegion region = make_device_region(6);
  write_all(region, {1, 2, 3, 4, 5, 6});
  const HostRegion host(*device_, 6, 2);
  bool first_piece_arrived = false;
  FakePinningJob pinning([&](Pages page) -> Result<void> {
    if (page == Pages(2)) { // the first piece's copy is under way while this one is still being pinned
      const ContextScope scope(*device_);
      EXPECT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS); // whatever is queued so far
      first_piece_arrived = host.read(1) == random_content(2);
    }
    return {};
  });
  std::vector<SaveTask> tasks = save_tasks(region, host, 6);
  for (SaveTask& task : tasks) {
    task.pinning = &pinning;
  }
  const Result<SaveReport> report = engine_->save(tasks);
  ASSERT_TRUE(report) << report.error().describe();
  EXPECT_TRUE(first_piece_arrived);
  EXPECT_EQ(pinning.waits, (std::vector<Pages>{Pages(0), Pages(2), Pages(4)}));
  for (std::size_t page = 0; page < 6; ++page) {
    EXPECT_EQ(host.read(page), random_content(page + 1)) << page;
  }
}

TEST_F(SavePipelineTest, WaitsForNoPieceThatGetsNoCopy) {
  const DeviceRegion region = make_device_region(4);
  write_all(region, {0, 0, 3, 4});
  const HostRegion host(*device_, 4, 2);
  FakePinningJob pinning([](Pages) { return Result<void>(); });
  std::vector<SaveTask> tasks = save_tasks(region, host, 4);
  for (SaveTask& task : tasks) {
    task.pinning = &pinning;
  }
  ASSERT_TRUE(engine_->save(tasks));
  EXPECT_EQ(pinning.waits, std::vector<Pages>{Pages(2)});
}

TEST_F(SavePipelineTest, APieceThatCannotBePinnedEndsTheSave) {
  const DeviceRegion region = make_device_region(4);
  write_all(region, {1, 2, 3, 4});
  HostRegion host(*device_, 4, 2);
  FakePinningJob pinning([](Pages page) -> Result<void> {
    return page == Pages(0) ? Result<void>() : failure(ErrorCode::kOutOfHostMemory, "no more");
  });
  std::vector<SaveTask> tasks = save_tasks(region, host, 4);
  for (SaveTask& task : tasks) {
    task.pinning = &pinning;
  }
  if (emulation() != nullptr) {
    emulation()->set_stream_delay(std::chrono::milliseconds(5));
  }
  const Result<SaveReport> report = engine_->save(tasks);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kOutOfHostMemory);
  host.fill(0x5a); // nothing may write here any more
  const ContextScope scope(*device_);
  ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  for (std::size_t page = 0; page < 4; ++page) {
    EXPECT_EQ(host.read(page), Content(262144, 0x5a5a5a5a5a5a5a5aull)) << page;
    EXPECT_EQ(read(region.at(page)), random_content(page + 1)) << page;
  }
}

TEST_F(SavePipelineTest, ReturnsOnlyWhenEveryCopyIsDone) {
  if (emulation() == nullptr) {
    GTEST_SKIP() << "delays are for the emulation";
  }
  const DeviceRegion region = make_device_region(3);
  write_all(region, {1, 2, 3});
  const HostRegion host(*device_, 3, 1);
  std::vector<SaveTask> tasks = save_tasks(region, host, 3);
  emulation()->set_stream_delay(std::chrono::milliseconds(20));
  ASSERT_TRUE(engine_->save(tasks));
  for (std::size_t page = 0; page < 3; ++page) {
    EXPECT_EQ(host.read(page), random_content(page + 1)) << page;
  }
}

// More than the two batches that are in flight, and a batch of digests that arrives late.
TEST_F(SavePipelineTest, ManyBatchesKeepTheirDigestsApart) {
  constexpr std::size_t kPages = 32 + 128 + 512 + 40;
  const DeviceRegion region = make_device_region(4);
  write_all(region, {1, 2, 3, 4});
  const HostRegion host(*device_, 4, 4);
  const Content contents[] = {random_content(1), random_content(2), random_content(3), random_content(4)};
  // The same four pages again and again, as if each were one of many.
  std::vector<SaveTask> tasks(kPages);
  const std::vector<DeviceAddress> pages = {region.at(0), region.at(1), region.at(2), region.at(3)};
  const std::vector<PageDigest> digests = *engine_->digest(pages);
  for (std::size_t i = 0; i < kPages; ++i) {
    tasks[i].device = region.at(i % 4);
    tasks[i].host = host.at(i % 4);
    tasks[i].known = digests[i % 4];
    tasks[i].known_encoding = PageEncoding::kRaw;
  }
  tasks[31].known->lane[0] ^= 1;
  tasks[32].known->lane[1] ^= 1;
  tasks[700].known->any_bits ^= 1;
  const Result<SaveReport> report = engine_->save(tasks);
  ASSERT_TRUE(report) << report.error().describe();
  EXPECT_EQ(report->pages_unchanged, Pages(kPages - 3));
  for (std::size_t i = 0; i < kPages; ++i) {
    ASSERT_EQ(tasks[i].copied, i == 31 || i == 32 || i == 700) << i;
    ASSERT_EQ(tasks[i].digest, digests[i % 4]) << i;
  }
  EXPECT_EQ(host.read(3), contents[3]);
  EXPECT_EQ(host.read(0), contents[0]);
}

TEST_F(SavePipelineTest, SavesOfSeveralThreadsTakeTurns) {
  const DeviceRegion region = make_device_region(4);
  write_all(region, {1, 2, 3, 4});
  const HostRegion host(*device_, 4, 2);
  std::vector<SaveTask> all = save_tasks(region, host, 4);
  std::vector<SaveTask> halves[2] = {{all.begin(), all.begin() + 2}, {all.begin() + 2, all.end()}};
  std::atomic<int> succeeded{0};
  std::vector<std::thread> threads;
  for (std::vector<SaveTask>& half : halves) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        succeeded += engine_->save(half).has_value() ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(succeeded, 20);
  for (std::size_t page = 0; page < 4; ++page) {
    EXPECT_EQ(host.read(page), random_content(page + 1)) << page;
  }
}

} // namespace
} // namespace stillwake
