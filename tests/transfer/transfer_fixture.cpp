// SPDX-License-Identifier: Apache-2.0
#include "tests/transfer/transfer_fixture.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

namespace stillwake {

HostRegion::HostRegion(Device& device, std::size_t pages, std::size_t piece_pages)
    : device_(device), pages_(pages), piece_pages_(piece_pages) {
  void* base = mmap(nullptr, pages * kPageBytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(base, MAP_FAILED);
  base_ = static_cast<std::byte*>(base);
  const ContextScope scope(device_);
  for (std::size_t page = 0; page < pages_; page += piece_pages_) {
    const std::size_t count = std::min(piece_pages_, pages_ - page);
    EXPECT_EQ(device_.table().cuMemHostRegister(at(page), count * kPageBytes.size(), CU_MEMHOSTREGISTER_PORTABLE),
              CUDA_SUCCESS);
  }
}

HostRegion::~HostRegion() {
  const ContextScope scope(device_);
  for (std::size_t page = 0; page < pages_; page += piece_pages_) {
    EXPECT_EQ(device_.table().cuMemHostUnregister(at(page)), CUDA_SUCCESS);
  }
  munmap(base_, pages_ * kPageBytes.size());
}

Content HostRegion::read(std::size_t page) const {
  Content content = zero_content();
  std::memcpy(content.data(), at(page), kPageBytes.size());
  return content;
}

void HostRegion::write(std::size_t page, const Content& content) {
  std::memcpy(at(page), content.data(), kPageBytes.size());
}

void HostRegion::fill(int byte) { std::memset(base_, byte, pages_ * kPageBytes.size()); }

void TransferTest::SetUp() {
  Result<Driver> driver = Driver::open();
  ASSERT_TRUE(driver) << driver.error().describe();
  driver_.emplace(std::move(*driver));
  Result<Device*> device = driver_->device(DeviceIndex(0));
  ASSERT_TRUE(device) << device.error().describe();
  device_ = *device;
  Result<OwnedStream> stream = OwnedStream::create(*device_);
  ASSERT_TRUE(stream) << stream.error().describe();
  stream_.emplace(std::move(*stream));
  engine_ = open_engine();
  ASSERT_NE(engine_, nullptr);
}

std::unique_ptr<TransferEngine> TransferTest::open_engine() {
  Result<std::unique_ptr<TransferEngine>> engine = TransferEngine::open(*device_, emulation());
  EXPECT_TRUE(engine) << engine.error().describe();
  return engine ? std::move(*engine) : nullptr;
}

DeviceRegion TransferTest::make_device_region(std::size_t pages) {
  DeviceRegion region;
  Result<Reservation> reservation = Reservation::create(*device_, Bytes(Pages(pages)));
  EXPECT_TRUE(reservation) << reservation.error().describe();
  region.reservation = std::move(*reservation);
  Result<Physical> physical = Physical::create(*device_, Pages(pages));
  EXPECT_TRUE(physical) << physical.error().describe();
  region.physical = std::move(*physical);
  Result<Mapping> mapping = region.reservation.map(Pages(0), region.physical);
  EXPECT_TRUE(mapping) << mapping.error().describe();
  region.mapping = std::move(*mapping);
  EXPECT_TRUE(region.reservation.allow_access({Pages(0), Pages(pages)}));
  return region;
}

void TransferTest::write(DeviceAddress page, const Content& content) {
  const ContextScope scope(*device_);
  ASSERT_EQ(table().cuMemcpyHtoDAsync(page.value(), content.data(), kPageBytes.size(), stream_->get()), CUDA_SUCCESS);
  ASSERT_EQ(table().cuStreamSynchronize(stream_->get()), CUDA_SUCCESS);
}

Content TransferTest::read(DeviceAddress page) {
  const ContextScope scope(*device_);
  Content content = zero_content();
  EXPECT_EQ(table().cuMemcpyDtoHAsync(content.data(), page.value(), kPageBytes.size(), stream_->get()), CUDA_SUCCESS);
  EXPECT_EQ(table().cuStreamSynchronize(stream_->get()), CUDA_SUCCESS);
  return content;
}

void TransferTest::write_all(const DeviceRegion& region, const std::vector<std::uint64_t>& seeds) {
  for (std::size_t page = 0; page < seeds.size(); ++page) {
    write(region.at(page), seeds[page] == 0 ? zero_content() : random_content(seeds[page]));
  }
}

std::vector<SaveTask> TransferTest::save_tasks(const DeviceRegion& region, const HostRegion& host, std::size_t pages) {
  std::vector<SaveTask> tasks(pages);
  for (std::size_t page = 0; page < pages; ++page) {
    tasks[page].device = region.at(page);
    tasks[page].host = host.at(page);
    tasks[page].page = Pages(page);
    tasks[page].piece = host.piece_of(page);
  }
  return tasks;
}

std::vector<RestoreTask> TransferTest::restore_tasks(const std::vector<SaveTask>& saved) {
  std::vector<RestoreTask> tasks;
  for (const SaveTask& task : saved) {
    tasks.push_back({task.device, task.host, task.piece, task.encoding, task.digest});
  }
  return tasks;
}

} // namespace stillwake
