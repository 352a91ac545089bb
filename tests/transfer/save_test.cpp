// SPDX-License-Identifier: Apache-2.0
// What a save copies, what it leaves out, and with how many calls.
#include "allocator/transfer/kernel_twins.h"
#include "tests/transfer/transfer_fixture.h"

namespace stillwake {
namespace {

class SaveTest : public TransferTest {
protected:
  std::uint64_t calls(CallId call) { return driver_->gate().calls(call); }
  SaveReport save(std::vector<SaveTask>& tasks) {
    const Result<SaveReport> report = engine_->save(tasks);
    EXPECT_TRUE(report) << report.error().describe();
    return report ? *report : SaveReport{};
  }
  /// Tasks as a second sleep has them: the first one's backing is known.
  static std::vector<SaveTask> again(std::vector<SaveTask> tasks) {
    for (SaveTask& task : tasks) {
      task.known = task.digest;
      task.known_encoding = task.encoding;
    }
    return tasks;
  }
};

TEST_F(SaveTest, CopiesNeighboursAsOne) {
  const DeviceRegion region = make_device_region(6);
  write_all(region, {1, 2, 3, 4, 5, 6});
  const HostRegion host(*device_, 6, 6);
  std::vector<SaveTask> tasks = save_tasks(region, host, 6);
  const SaveReport report = save(tasks);
  EXPECT_EQ(report.copied, kMiB * 12);
  EXPECT_EQ(report.pages_copied, Pages(6));
  EXPECT_EQ(report.pages_unchanged, Pages(0));
  EXPECT_EQ(report.pages_zero, Pages(0));
  EXPECT_EQ(report.copies, 1u);
  EXPECT_GT(report.hashing, Duration(0));
  EXPECT_GT(report.copying, Duration(0));
  for (std::size_t page = 0; page < 6; ++page) {
    EXPECT_EQ(host.read(page), random_content(page + 1)) << page;
    EXPECT_EQ(tasks[page].encoding, PageEncoding::kRaw);
    EXPECT_TRUE(tasks[page].copied);
    EXPECT_EQ(tasks[page].digest, digest_of_page(random_content(page + 1).data(), engine_->seed()));
  }
}

TEST_F(SaveTest, NoCopySpansTwoPieces) {
  const DeviceRegion region = make_device_region(7);
  write_all(region, {1, 2, 3, 4, 5, 6, 7});
  const HostRegion host(*device_, 7, 2); // a copy over two registrations fails on either driver
  std::vector<SaveTask> tasks = save_tasks(region, host, 7);
  EXPECT_EQ(save(tasks).copies, 4u);
  for (std::size_t page = 0; page < 7; ++page) {
    EXPECT_EQ(host.read(page), random_content(page + 1)) << page;
  }
}

TEST_F(SaveTest, PagesApartOnEitherSideAreCopiesApart) {
  const DeviceRegion region = make_device_region(5);
  write_all(region, {1, 2, 3, 4, 5});
  HostRegion host(*device_, 5, 5);
  host.fill(0x5a);
  std::vector<SaveTask> tasks = save_tasks(region, host, 5);
  tasks.erase(tasks.begin() + 1);
  std::swap(tasks[2].host, tasks[3].host);
  EXPECT_EQ(save(tasks).copies, 4u); // 0 | 2 | 3, whose host page is 4 | 4, whose host page is 3
  EXPECT_EQ(host.read(0), random_content(1));
  EXPECT_EQ(host.read(1), Content(262144, 0x5a5a5a5a5a5a5a5aull));
  EXPECT_EQ(host.read(2), random_content(3));
  EXPECT_EQ(host.read(3), random_content(5));
  EXPECT_EQ(host.read(4), random_content(4));
}

TEST_F(SaveTest, ZeroPagesAreCopiedOnlyWhenTheHostCopyMustBeReadable) {
  const DeviceRegion region = make_device_region(4);
  write_all(region, {1, 0, 0, 2});
  HostRegion host(*device_, 4, 4);
  host.fill(0x5a);
  std::vector<SaveTask> tasks = save_tasks(region, host, 4);
  tasks[2].may_elide_zero = false;
  const SaveReport report = save(tasks);
  EXPECT_EQ(report.pages_zero, Pages(1));
  EXPECT_EQ(report.pages_copied, Pages(3));
  EXPECT_EQ(report.copies, 2u);
  EXPECT_EQ(tasks[1].encoding, PageEncoding::kZero);
  EXPECT_FALSE(tasks[1].copied);
  ASSERT_TRUE(tasks[1].digest);
  EXPECT_TRUE(tasks[1].digest->is_zero());
  EXPECT_EQ(host.read(1), Content(262144, 0x5a5a5a5a5a5a5a5aull));
  EXPECT_EQ(tasks[2].encoding, PageEncoding::kRaw);
  EXPECT_EQ(host.read(2), zero_content());
}

TEST_F(SaveTest, LaterSavesCopyWhatChanged) {
  const DeviceRegion region = make_device_region(5);
  write_all(region, {1, 2, 0, 4, 5});
  const HostRegion host(*device_, 5, 5);
  std::vector<SaveTask> first = save_tasks(region, host, 5);
  save(first);
  Content changed = random_content(4);
  changed[262143] ^= 1;
  write(region.at(3), changed);
  write(region.at(4), zero_content());

  std::vector<SaveTask> second = again(first);
  const SaveReport report = save(second);
  EXPECT_EQ(report.copied, kPageBytes);
  EXPECT_EQ(report.copies, 1u);
  EXPECT_EQ(report.pages_unchanged, Pages(3));
  EXPECT_EQ(report.pages_zero, Pages(1));
  EXPECT_EQ(second[0].encoding, PageEncoding::kRaw);
  EXPECT_EQ(second[0].digest, first[0].digest);
  EXPECT_EQ(second[2].encoding, PageEncoding::kZero);
  EXPECT_FALSE(second[2].copied);
  EXPECT_EQ(host.read(3), changed);
  EXPECT_EQ(second[4].encoding, PageEncoding::kZero);
  EXPECT_NE(second[4].digest, first[4].digest);
}

TEST_F(SaveTest, TrustCostsNothing) {
  const DeviceRegion region = make_device_region(3);
  write_all(region, {1, 2, 0});
  const HostRegion host(*device_, 3, 3);
  std::vector<SaveTask> first = save_tasks(region, host, 3);
  save(first);
  std::vector<SaveTask> second = again(first);
  for (SaveTask& task : second) {
    task.trusted = true;
  }
  const std::uint64_t before = driver_->gate().calls();
  const SaveReport report = save(second);
  EXPECT_EQ(driver_->gate().calls(), before);
  EXPECT_EQ(report.pages_unchanged, Pages(3));
  EXPECT_EQ(report.copies, 0u);
  EXPECT_EQ(second[2].encoding, PageEncoding::kZero);
  EXPECT_EQ(second[1].digest, first[1].digest);
}

// Trust without a backing to trust is no reason to lose a page.
TEST_F(SaveTest, ABackingThatCannotServeIsCopiedAnew) {
  const DeviceRegion region = make_device_region(3);
  write_all(region, {1, 0, 3});
  HostRegion host(*device_, 3, 3);
  std::vector<SaveTask> first = save_tasks(region, host, 3);
  save(first);
  std::vector<SaveTask> second = again(first);
  host.fill(0x5a);
  second[0].known.reset();
  second[1].may_elide_zero = false;
  second[2].known_encoding = PageEncoding::kNone;
  for (SaveTask& task : second) {
    task.trusted = true;
  }
  EXPECT_EQ(save(second).pages_copied, Pages(3));
  EXPECT_EQ(host.read(0), random_content(1));
  EXPECT_EQ(host.read(1), zero_content());
  EXPECT_EQ(host.read(2), random_content(3));
}

TEST_F(SaveTest, WithoutDeviceCodeEverythingIsCopiedAndNothingKnown) {
  driver_->gate().arm({{CallId::cuModuleLoadData, 1}});
  engine_ = open_engine();
  driver_->gate().arm({});
  const DeviceRegion region = make_device_region(3);
  write_all(region, {1, 0, 3});
  const HostRegion host(*device_, 3, 3);
  std::vector<SaveTask> tasks = save_tasks(region, host, 3);
  tasks[0].known = digest_of_page(random_content(1).data(), engine_->seed());
  tasks[0].known_encoding = PageEncoding::kRaw;
  const SaveReport report = save(tasks);
  EXPECT_EQ(report.pages_copied, Pages(3));
  EXPECT_EQ(report.copies, 1u);
  EXPECT_EQ(report.hashing, Duration(0));
  EXPECT_FALSE(tasks[0].digest);
  EXPECT_EQ(tasks[1].encoding, PageEncoding::kRaw);
  EXPECT_EQ(host.read(1), zero_content());
  EXPECT_EQ(host.read(2), random_content(3));
}

// Field report D5: many small tensors take as many copies as one of their size, plus one at most. Whatever the tensors
// are, their pages come here as neighbours; batches of hashing must not cut them into many.
TEST_F(SaveTest, ManyNeighboursTakeFewCopiesFieldReportD5) {
  constexpr std::size_t kPages = 300;
  const DeviceRegion region = make_device_region(kPages);
  const ContextScope scope(*device_);
  ASSERT_EQ(table().cuMemsetD8Async(region.at(0).value(), 7, kPages * kPageBytes.size(), stream_->get()), CUDA_SUCCESS);
  ASSERT_TRUE(stream_->synchronize());
  const HostRegion host(*device_, kPages, kPages);
  std::vector<SaveTask> tasks = save_tasks(region, host, kPages);
  const std::uint64_t before = calls(CallId::cuMemcpyDtoHAsync);
  const SaveReport report = save(tasks);
  EXPECT_EQ(report.pages_copied, Pages(kPages));
  EXPECT_LE(report.copies, 4u);                                            // 600 MiB are three calls of 256 MiB
  EXPECT_LE(calls(CallId::cuMemcpyDtoHAsync) - before, report.copies + 3); // and one a batch for its digests
  EXPECT_EQ(host.read(kPages - 1), Content(262144, 0x0707070707070707ull));
}

TEST_F(SaveTest, NothingToSaveMakesNoCall) {
  std::vector<SaveTask> none;
  const std::uint64_t before = driver_->gate().calls();
  EXPECT_EQ(save(none).copies, 0u);
  EXPECT_EQ(driver_->gate().calls(), before);
}

} // namespace
} // namespace stillwake
