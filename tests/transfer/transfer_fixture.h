// SPDX-License-Identifier: Apache-2.0
// A TransferTest has one device of whichever driver the environment chose, an engine, and makes device memory and host
// memory that is pinned piece by piece.
#pragma once

#include "allocator/driver/emulation/emulation.h"
#include "allocator/memory/memory.h"
#include "allocator/transfer/transfer.h"
#include "tests/transfer/page_content.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

namespace stillwake {

/// Mapped pages of the device, neighbours.
struct DeviceRegion {
  Reservation reservation;
  Physical physical;
  Mapping mapping;

  DeviceAddress at(std::size_t page) const { return reservation.at(Pages(page)); }
};

/// Neighbouring host pages; `piece_pages` of them are pinned as one.
class HostRegion {
public:
  HostRegion(Device& device, std::size_t pages, std::size_t piece_pages);
  ~HostRegion();
  HostRegion(const HostRegion&) = delete;
  HostRegion& operator=(const HostRegion&) = delete;

  std::byte* at(std::size_t page) const { return base_ + page * kPageBytes.size(); }
  std::uint32_t piece_of(std::size_t page) const { return static_cast<std::uint32_t>(page / piece_pages_); }
  Content read(std::size_t page) const;
  void write(std::size_t page, const Content& content);
  void fill(int byte);

private:
  Device& device_;
  std::size_t pages_;
  std::size_t piece_pages_;
  std::byte* base_ = nullptr;
};

class TransferTest : public ::testing::Test {
protected:
  void SetUp() override;

  DriverTable& table() { return driver_->table(); }
  Emulation* emulation() { return driver_->emulation(); }
  /// Fails the test where the engine cannot be opened.
  std::unique_ptr<TransferEngine> open_engine();

  DeviceRegion make_device_region(std::size_t pages);
  void write(DeviceAddress page, const Content& content);
  Content read(DeviceAddress page);
  /// Fills the pages with random content of these seeds; seed 0 means zeros.
  void write_all(const DeviceRegion& region, const std::vector<std::uint64_t>& seeds);

  /// One task a page, page i of the region at page i of the host.
  static std::vector<SaveTask> save_tasks(const DeviceRegion& region, const HostRegion& host, std::size_t pages);
  /// What a wake of saved tasks asks for.
  static std::vector<RestoreTask> restore_tasks(const std::vector<SaveTask>& saved);

  std::optional<Driver> driver_;
  Device* device_ = nullptr;
  std::optional<OwnedStream> stream_; // of the test itself
  std::unique_ptr<TransferEngine> engine_;
};

} // namespace stillwake
