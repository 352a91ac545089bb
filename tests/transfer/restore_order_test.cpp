// SPDX-License-Identifier: Apache-2.0
// That a wake's work is waited for: by streams, by the host, and by the end of a job.
#include "tests/transfer/transfer_fixture.h"

namespace stillwake {
namespace {

class RestoreOrderTest : public TransferTest {
protected:
  static constexpr std::size_t kPages = 6;

  void SetUp() override {
    TransferTest::SetUp();
    region_ = make_device_region(kPages);
    host_ = std::make_unique<HostRegion>(*device_, kPages, kPages);
    write_all(region_, {1, 2, 0, 4, 5, 6});
    std::vector<SaveTask> saved = save_tasks(region_, *host_, kPages);
    ASSERT_TRUE(engine_->save(saved));
    tasks_ = restore_tasks(saved);
    for (std::size_t page = 0; page < kPages; ++page) {
      write(region_.at(page), Content(262144, 0xabababababababab));
    }
    set_delay(std::chrono::milliseconds(5));
  }
  void TearDown() override {
    set_delay(Duration(0));
    host_.reset();
  }
  void set_delay(Duration delay) {
    if (emulation() != nullptr) {
      emulation()->set_stream_delay(delay);
    }
  }

  DeviceRegion region_;
  std::unique_ptr<HostRegion> host_;
  std::vector<RestoreTask> tasks_;
};

TEST_F(RestoreOrderTest, AStreamThatWaitsReadsTheRestoredBytes) {
  Result<std::unique_ptr<RestoreJob>> job = engine_->restore(tasks_, kPageBytes * 2);
  ASSERT_TRUE(job) << job.error().describe();
  ASSERT_EQ((*job)->chunks(), 3u);
  for (const std::size_t chunk : {2, 0, 1}) {
    ASSERT_TRUE((*job)->make_wait(stream_->get(), chunk));
    EXPECT_EQ(read(region_.at(2 * chunk + 1)), random_content(2 * chunk + 2)) << chunk; // on stream_
  }
  EXPECT_EQ(read(region_.at(2)), zero_content());
  EXPECT_EQ((*job)->is_done(2), true);
}

TEST_F(RestoreOrderTest, ChunksBecomeReadyInOrder) {
  Result<std::unique_ptr<RestoreJob>> job = engine_->restore(tasks_, kPageBytes);
  ASSERT_TRUE(job) << job.error().describe();
  while (!(*job)->is_done(3).value()) {}
  EXPECT_EQ((*job)->is_done(1), true);
  EXPECT_EQ(read(region_.at(3)), random_content(4));
  EXPECT_EQ(read(region_.at(0)), random_content(1));
}

TEST_F(RestoreOrderTest, FinishWaits) {
  Result<std::unique_ptr<RestoreJob>> job = engine_->restore(tasks_, kPageBytes);
  ASSERT_TRUE(job) << job.error().describe();
  const Result<std::vector<std::size_t>> wrong = (*job)->finish();
  ASSERT_TRUE(wrong) << wrong.error().describe();
  EXPECT_TRUE(wrong->empty());
  for (const std::size_t page : {0, 1, 3, 4, 5}) {
    EXPECT_EQ(read(region_.at(page)), random_content(page + 1)) << page;
  }
}

TEST_F(RestoreOrderTest, DestroyingAJobWaits) {
  engine_->restore(tasks_, kPageBytes)->reset();
  host_->fill(0x5a); // nobody may read it any more
  for (const std::size_t page : {0, 1, 3, 4, 5}) {
    EXPECT_EQ(read(region_.at(page)), random_content(page + 1)) << page;
  }
}

TEST_F(RestoreOrderTest, ChunksAreQueuedAsTheirTurnComes) {
  const std::uint64_t before = driver_->gate().calls(CallId::cuMemcpyHtoDAsync);
  const auto copies = [&] { return driver_->gate().calls(CallId::cuMemcpyHtoDAsync) - before; };
  Result<std::unique_ptr<RestoreJob>> job = engine_->begin_restore(tasks_, kPageBytes * 4);
  ASSERT_TRUE(job) << job.error().describe();
  EXPECT_EQ((*job)->chunks(), 2u);
  EXPECT_EQ(copies(), 0u);
  ASSERT_TRUE((*job)->queue(1));
  EXPECT_EQ(copies(), 2u) << "pages 0 and 1, and 3: the third is zeros";
  ASSERT_TRUE((*job)->queue(7));
  EXPECT_EQ(copies(), 3u);
  ASSERT_TRUE((*job)->queue(1)) << "all of it is queued";
  EXPECT_EQ(copies(), 3u);
  ASSERT_TRUE((*job)->finish());
  EXPECT_EQ(read(region_.at(5)), random_content(6));
}

TEST_F(RestoreOrderTest, DestroyingAJobWaitsForTheChunksThatWereQueued) {
  Result<std::unique_ptr<RestoreJob>> job = engine_->begin_restore(tasks_, kPageBytes * 2);
  ASSERT_TRUE(job) << job.error().describe();
  ASSERT_TRUE((*job)->queue(2));
  job->reset();
  host_->fill(0x5a); // nobody may read it any more
  for (const std::size_t page : {0, 1, 3}) {
    EXPECT_EQ(read(region_.at(page)), random_content(page + 1)) << page;
  }
  EXPECT_EQ(read(region_.at(4)), Content(262144, 0xabababababababab)) << "was not queued";
}

TEST_F(RestoreOrderTest, AChunkThatCannotBeQueuedLeavesNothingUnderWay) {
  Result<std::unique_ptr<RestoreJob>> job = engine_->begin_restore(tasks_, kPageBytes * 2);
  ASSERT_TRUE(job) << job.error().describe();
  ASSERT_TRUE((*job)->queue(1));
  driver_->gate().arm({Fault{CallId::cuMemcpyHtoDAsync, 1, CUDA_ERROR_UNKNOWN, false}});
  const Result<void> queued = (*job)->queue(2);
  driver_->gate().arm({});
  ASSERT_FALSE(queued);
  EXPECT_EQ(queued.error().code, ErrorCode::kDriverCallFailed);
  host_->fill(0x5a); // before the job is destroyed
  for (const std::size_t page : {0, 1}) {
    EXPECT_EQ(read(region_.at(page)), random_content(page + 1)) << page;
  }
}

TEST_F(RestoreOrderTest, AJobThatIsNotQueuedAsAWholeMakesNobodyWait) {
  Result<std::unique_ptr<RestoreJob>> job = engine_->begin_restore(tasks_, kPageBytes * 2);
  ASSERT_TRUE(job) << job.error().describe();
  ASSERT_TRUE((*job)->queue(2));
  EXPECT_DEATH((void)(*job)->make_wait(stream_->get(), 0), "is_queued");
  EXPECT_DEATH((void)(*job)->finish(), "is_queued");
}

// What a stream waits for does not change when the job's events serve another job.
TEST_F(RestoreOrderTest, AWaitOutlivesItsJob) {
  Result<std::unique_ptr<RestoreJob>> first = engine_->restore(tasks_, kPageBytes);
  ASSERT_TRUE(first) << first.error().describe();
  ASSERT_TRUE((*first)->make_wait(stream_->get(), 5));
  first->reset();
  // The second job takes the same events for other pages: two restores of one page at once would race.
  const DeviceRegion other = make_device_region(kPages);
  std::vector<RestoreTask> elsewhere = tasks_;
  for (std::size_t page = 0; page < kPages; ++page) {
    elsewhere[page].device = other.at(page);
  }
  Result<std::unique_ptr<RestoreJob>> second = engine_->restore(elsewhere, kPageBytes);
  ASSERT_TRUE(second) << second.error().describe();
  EXPECT_EQ(read(region_.at(5)), random_content(6));
}

TEST_F(RestoreOrderTest, ACapturingStreamIsRefusedAndItsCaptureGoesOn) {
  Result<std::unique_ptr<RestoreJob>> job = engine_->restore(tasks_, kPageBytes);
  ASSERT_TRUE(job) << job.error().describe();
  const ContextScope scope(*device_);
  ASSERT_EQ(table().cuStreamBeginCapture(stream_->get(), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  const Result<void> waited = (*job)->make_wait(stream_->get(), 5);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, ErrorCode::kBusy);
  CUgraph graph = nullptr;
  ASSERT_EQ(table().cuStreamEndCapture(stream_->get(), &graph), CUDA_SUCCESS);
  EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_TRUE((*job)->make_wait(stream_->get(), 5));
}

TEST_F(RestoreOrderTest, ASaveAndARestoreRunAtOnce) {
  const DeviceRegion other = make_device_region(2);
  write_all(other, {11, 12});
  const HostRegion other_host(*device_, 2, 2);
  Result<std::unique_ptr<RestoreJob>> job = engine_->restore(tasks_, kPageBytes);
  ASSERT_TRUE(job) << job.error().describe();
  std::vector<SaveTask> saves = save_tasks(other, other_host, 2);
  ASSERT_TRUE(engine_->save(saves));
  EXPECT_EQ(other_host.read(1), random_content(12));
  const Result<std::vector<std::size_t>> wrong = (*job)->finish();
  ASSERT_TRUE(wrong) << wrong.error().describe();
  EXPECT_TRUE(wrong->empty());
}

} // namespace
} // namespace stillwake
