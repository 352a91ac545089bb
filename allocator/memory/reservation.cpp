// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/reservation.h"

#include <utility>
#include <vector>

namespace stillwake {
namespace {

std::string pages_at(DeviceAddress address, Pages pages) {
  return readable(Bytes(pages)) + " at " + hexadecimal(address);
}

} // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), address_(other.address_), pages_(other.pages_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(pages_, other.pages_);
  return *this;
}

Mapping::~Mapping() {
  if (device_ != nullptr) {
    try_twice(device_->table(), [this] { return unmap(); });
  }
}

Result<void> Mapping::unmap() {
  Mapping* const only[] = {this};
  return unmap_neighbours(only);
}

Result<void> Mapping::unmap_neighbours(std::span<Mapping* const> mappings) {
  STILLWAKE_CHECK(!mappings.empty());
  const Mapping& first = *mappings.front();
  if (first.device_ != nullptr && !driver_is_out_of_reach()) {
    Pages pages;
    for (const Mapping* mapping : mappings) {
      STILLWAKE_CHECK_EQ(mapping->address_, first.address_ + Bytes(pages));
      pages += mapping->pages_;
    }
    Device& device = *first.device_;
    STILLWAKE_ENTER(device);
    const CUresult result = device.table().cuMemUnmap(first.address_.value(), Bytes(pages).size());
    if (result != CUDA_SUCCESS) {
      return failure(
          driver_error(device.table(), CallId::cuMemUnmap, result, "unmapping " + pages_at(first.address_, pages)));
    }
  }
  for (Mapping* mapping : mappings) {
    mapping->device_ = nullptr;
  }
  return {};
}

Result<Reservation> Reservation::create(Device& device, Bytes size) {
  STILLWAKE_CHECK_LT(Bytes(0), size);
  STILLWAKE_CHECK_EQ(size % kPageBytes, Bytes(0));
  STILLWAKE_ENTER(device);
  CUdeviceptr base = 0;
  const CUresult result = device.table().cuMemAddressReserve(&base, size.size(), kPageBytes.size(), 0, 0);
  if (result != CUDA_SUCCESS) {
    Error error = driver_error(device.table(), CallId::cuMemAddressReserve, result,
                               "reserving " + readable(size) + " of addresses on device " +
                                   std::to_string(device.index().value()));
    if (error.code == ErrorCode::kOutOfDeviceMemory) {
      error.code = ErrorCode::kOutOfHostMemory; // addresses of this process ran out; the device's memory was not asked
    }
    return failure(std::move(error));
  }
  return Reservation(device, DeviceAddress(static_cast<std::uint64_t>(base)), size);
}

Reservation::Reservation(Reservation&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), base_(other.base_), size_(other.size_) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

Reservation::~Reservation() {
  if (device_ != nullptr) {
    try_twice(device_->table(), [this] { return close(); });
  }
}

Result<Mapping> Reservation::map(Pages at, const Physical& physical) {
  STILLWAKE_CHECK_LE(Bytes(at + physical.pages()), size_);
  STILLWAKE_ENTER(*device_);
  const DeviceAddress address = this->at(at);
  const CUresult result =
      device_->table().cuMemMap(address.value(), Bytes(physical.pages()).size(), 0, physical.handle(), 0);
  if (result != CUDA_SUCCESS) {
    return failure(
        driver_error(device_->table(), CallId::cuMemMap, result, "mapping " + pages_at(address, physical.pages())));
  }
  return Mapping(*device_, address, physical.pages());
}

Result<void> Reservation::allow_access(PageRange range) {
  const DeviceIndex own[] = {device_->index()};
  return allow_access(range, own);
}

Result<void> Reservation::allow_access(PageRange range, std::span<const DeviceIndex> devices) {
  STILLWAKE_ENTER(*device_);
  std::vector<CUmemAccessDesc> access;
  for (DeviceIndex index : devices) {
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, index.value()}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  const CUresult result =
      device_->table().cuMemSetAccess(at(range.first).value(), Bytes(range.count).size(), access.data(), access.size());
  if (result != CUDA_SUCCESS) {
    return failure(driver_error(device_->table(), CallId::cuMemSetAccess, result,
                                "allowing access to " + pages_at(at(range.first), range.count)));
  }
  return {};
}

Result<void> Reservation::close() {
  if (device_ == nullptr || driver_is_out_of_reach()) {
    device_ = nullptr;
    return {};
  }
  STILLWAKE_ENTER(*device_);
  STILLWAKE_TRY(
      STILLWAKE_CALL(device_->table(), "giving a reservation back", cuMemAddressFree, base_.value(), size_.size()));
  device_ = nullptr;
  return {};
}

} // namespace stillwake
