// SPDX-License-Identifier: Apache-2.0
// What a restore brings back, and what its job tells.
#include "allocator/transfer/kernel_twins.h"
#include "tests/transfer/transfer_fixture.h"

namespace stillwake {
namespace {

class RestoreTest : public TransferTest {
protected:
  std::unique_ptr<RestoreJob> restore(std::vector<RestoreTask> tasks, Bytes chunk) {
    Result<std::unique_ptr<RestoreJob>> job = engine_->restore(std::move(tasks), chunk);
    EXPECT_TRUE(job) << job.error().describe();
    return job ? std::move(*job) : nullptr;
  }
  std::vector<std::size_t> wrong_pages(RestoreJob& job) {
    const Result<std::vector<std::size_t>> wrong = job.finish();
    EXPECT_TRUE(wrong) << wrong.error().describe();
    return wrong ? *wrong : std::vector<std::size_t>{12345};
  }
  void scribble(const DeviceRegion& region, std::size_t pages) {
    for (std::size_t page = 0; page < pages; ++page) {
      write(region.at(page), Content(262144, 0xabababababababab));
    }
  }
  std::uint64_t calls(CallId call) { return driver_->gate().calls(call); }
};

TEST_F(RestoreTest, BringsBackWhatWasSaved) {
  const std::vector<std::uint64_t> seeds = {1, 0, 3, 4, 0, 0, 7};
  const DeviceRegion region = make_device_region(7);
  write_all(region, seeds);
  const HostRegion host(*device_, 7, 4);
  std::vector<SaveTask> saved = save_tasks(region, host, 7);
  ASSERT_TRUE(engine_->save(saved));
  scribble(region, 7);
  std::vector<RestoreTask> tasks = restore_tasks(saved);
  tasks[5].encoding = PageEncoding::kNone; // a new page
  tasks[5].expected.reset();
  const std::unique_ptr<RestoreJob> job = restore(tasks, kMiB * 64);
  EXPECT_TRUE(wrong_pages(*job).empty());
  EXPECT_TRUE(wrong_pages(*job).empty()); // again
  EXPECT_EQ(job->copied(), kPageBytes * 4);
  EXPECT_GT(job->took(), Duration(0));
  for (std::size_t page = 0; page < 7; ++page) {
    EXPECT_EQ(read(region.at(page)), seeds[page] == 0 ? zero_content() : random_content(seeds[page])) << page;
  }
}

TEST_F(RestoreTest, CopiesNeighboursOfOnePieceAndChunkAsOne) {
  const DeviceRegion region = make_device_region(8);
  const HostRegion host(*device_, 8, 5);
  std::vector<SaveTask> saved = save_tasks(region, host, 8);
  for (SaveTask& task : saved) {
    task.encoding = PageEncoding::kRaw;
  }
  const std::uint64_t before = calls(CallId::cuMemcpyHtoDAsync);
  const std::unique_ptr<RestoreJob> job = restore(restore_tasks(saved), kPageBytes * 3);
  EXPECT_EQ(calls(CallId::cuMemcpyHtoDAsync) - before, 4u); // 0..2 | 3..4 | 5 | 6..7
  EXPECT_EQ(job->chunks(), 3u);
  EXPECT_EQ(job->chunk_of(2), 0u);
  EXPECT_EQ(job->chunk_of(3), 1u);
  EXPECT_EQ(job->chunk_of(7), 2u);
}

TEST_F(RestoreTest, TheFirstChunkIsSmallHoweverLargeTheChunks) {
  const DeviceRegion region = make_device_region(1);
  const std::vector<RestoreTask> tasks(
      800, RestoreTask{region.at(0), nullptr, 0, PageEncoding::kNone, {}}); // cleared 800 times
  const std::unique_ptr<RestoreJob> job = restore(tasks, kMiB * 512);
  EXPECT_EQ(job->chunks(), 4u); // 128, 256, 256, 160 pages
  EXPECT_EQ(job->chunk_of(127), 0u);
  EXPECT_EQ(job->chunk_of(128), 1u);
  EXPECT_EQ(job->chunk_of(383), 1u);
  EXPECT_EQ(job->chunk_of(384), 2u);
  EXPECT_EQ(job->chunk_of(799), 3u);
  EXPECT_TRUE(wrong_pages(*job).empty());
}

TEST_F(RestoreTest, ThereAreNeverMoreChunksThanADeviceTakesAtOnce) {
  const DeviceRegion region = make_device_region(1);
  const std::vector<RestoreTask> tasks(801, RestoreTask{region.at(0), nullptr, 0, PageEncoding::kNone, {}});
  const std::unique_ptr<RestoreJob> job = restore(tasks, kPageBytes);
  EXPECT_EQ(job->chunk_of(0), 0u);
  EXPECT_EQ(job->chunk_of(1), 1u); // the first is as small as asked
  EXPECT_EQ(job->chunk_of(6), 1u);
  EXPECT_EQ(job->chunk_of(7), 2u);
  EXPECT_EQ(job->chunks(), 135u); // 1 and 134 of 6
  EXPECT_TRUE(wrong_pages(*job).empty());
}

TEST_F(RestoreTest, TellsWhichPagesAreNotWhatWasSaved) {
  const DeviceRegion region = make_device_region(6);
  write_all(region, {1, 2, 3, 0, 5, 6});
  HostRegion host(*device_, 6, 6);
  std::vector<SaveTask> saved = save_tasks(region, host, 6);
  ASSERT_TRUE(engine_->save(saved));
  Content flipped = random_content(2);
  flipped[100000] ^= 1ull << 17;
  host.write(1, flipped);
  std::vector<RestoreTask> tasks = restore_tasks(saved);
  tasks[3].expected->any_bits = 4; // a page cleared, but expected not to be zero
  tasks[4].expected->lane[1] += 1;
  tasks[5].expected.reset(); // nothing to compare with
  host.write(5, flipped);
  const std::unique_ptr<RestoreJob> job = restore(tasks, kPageBytes * 2);
  EXPECT_EQ(wrong_pages(*job), (std::vector<std::size_t>{1, 3, 4}));
  EXPECT_EQ(wrong_pages(*job), (std::vector<std::size_t>{1, 3, 4}));
}

TEST_F(RestoreTest, WithoutDeviceCodeBytesAreRightAndNothingIsVerified) {
  driver_->gate().arm({{CallId::cuModuleLoadData, 1}});
  engine_ = open_engine();
  driver_->gate().arm({});
  const DeviceRegion region = make_device_region(3);
  const HostRegion host(*device_, 3, 3);
  write_all(region, {1, 0, 3});
  std::vector<SaveTask> saved = save_tasks(region, host, 3);
  ASSERT_TRUE(engine_->save(saved));
  scribble(region, 3);
  std::vector<RestoreTask> tasks = restore_tasks(saved);
  tasks[0].expected = PageDigest{{1, 2}, 3};
  const std::unique_ptr<RestoreJob> job = restore(tasks, kPageBytes);
  EXPECT_TRUE(wrong_pages(*job).empty());
  EXPECT_EQ(read(region.at(0)), random_content(1));
  EXPECT_EQ(read(region.at(1)), zero_content());
  EXPECT_EQ(read(region.at(2)), random_content(3));
}

TEST_F(RestoreTest, WhatIsFinishedIsAskedWithoutTheDriver) {
  const DeviceRegion region = make_device_region(2);
  const HostRegion host(*device_, 2, 2);
  write_all(region, {1, 2});
  std::vector<SaveTask> saved = save_tasks(region, host, 2);
  ASSERT_TRUE(engine_->save(saved));
  const std::unique_ptr<RestoreJob> job = restore(restore_tasks(saved), kPageBytes);
  ASSERT_TRUE(wrong_pages(*job).empty());
  const std::uint64_t before = driver_->gate().calls();
  EXPECT_EQ(job->is_done(0), true);
  EXPECT_EQ(job->is_done(1), true);
  EXPECT_TRUE(job->make_wait(stream_->get(), 1));
  EXPECT_TRUE(wrong_pages(*job).empty());
  EXPECT_EQ(driver_->gate().calls(), before);
}

TEST_F(RestoreTest, EventsAndBuffersAreReused) {
  const DeviceRegion region = make_device_region(6);
  const HostRegion host(*device_, 6, 6);
  write_all(region, {1, 2, 3, 4, 5, 6});
  std::vector<SaveTask> saved = save_tasks(region, host, 6);
  ASSERT_TRUE(engine_->save(saved));
  // Two jobs under way at once never restore the same pages.
  const DeviceRegion other_region = make_device_region(6);
  const HostRegion other_host(*device_, 6, 6);
  write_all(other_region, {7, 8, 9, 10, 11, 12});
  std::vector<SaveTask> other_saved = save_tasks(other_region, other_host, 6);
  ASSERT_TRUE(engine_->save(other_saved));
  {
    const std::unique_ptr<RestoreJob> first = restore(restore_tasks(saved), kPageBytes);
    const std::unique_ptr<RestoreJob> second = restore(restore_tasks(other_saved), kPageBytes);
    EXPECT_TRUE(wrong_pages(*second).empty()); // in any order
    EXPECT_TRUE(wrong_pages(*first).empty());
  }
  const std::uint64_t events = calls(CallId::cuEventCreate);
  const std::uint64_t pinned = calls(CallId::cuMemHostRegister);
  {
    const std::unique_ptr<RestoreJob> first = restore(restore_tasks(saved), kPageBytes);
    const std::unique_ptr<RestoreJob> second = restore(restore_tasks(other_saved), kPageBytes);
  } // not finished: destroying waits
  EXPECT_EQ(calls(CallId::cuEventCreate), events);
  EXPECT_EQ(calls(CallId::cuMemHostRegister), pinned);
}

TEST_F(RestoreTest, NothingToRestore) {
  const std::unique_ptr<RestoreJob> job = restore({}, kPageBytes);
  EXPECT_EQ(job->chunks(), 0u);
  EXPECT_TRUE(wrong_pages(*job).empty());
  EXPECT_EQ(job->copied(), Bytes(0));
}

TEST_F(RestoreTest, WrongNumbersAreRefused) {
  EXPECT_EQ(engine_->restore({}, Bytes(4096)).error().code, ErrorCode::kInvalidArgument);
  const DeviceRegion region = make_device_region(1);
  const std::unique_ptr<RestoreJob> job =
      restore({RestoreTask{region.at(0), nullptr, 0, PageEncoding::kNone, {}}}, kPageBytes);
  EXPECT_EQ(job->is_done(1).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(job->make_wait(stream_->get(), 1).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(RestoreTest, LeavesTheCallersContextAlone) {
  const DeviceRegion region = make_device_region(1);
  const HostRegion host(*device_, 1, 1);
  std::vector<SaveTask> saved = save_tasks(region, host, 1);
  CUcontext current = nullptr;
  ASSERT_TRUE(engine_->save(saved));
  ASSERT_EQ(table().cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, nullptr);
  const std::unique_ptr<RestoreJob> job = restore(restore_tasks(saved), kPageBytes);
  ASSERT_TRUE(job->make_wait(stream_->get(), 0));
  ASSERT_TRUE(job->is_done(0));
  ASSERT_TRUE(wrong_pages(*job).empty());
  ASSERT_EQ(table().cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, nullptr);
}

} // namespace
} // namespace stillwake
