// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/conformance/pieces.h"

#include "tests/driver/conformance/conformance.h"

#include <algorithm>
#include <sys/mman.h>

namespace stillwake {

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp memory = {};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.location.id = device;
  return memory;
}

CUmemAccessDesc access_of(int device, CUmemAccess_flags flags) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = flags;
  return access;
}

Range::Range(DriverTable& table, Bytes size, Bytes alignment) : table_(table), size_(size) {
  EXPECT_ANSWER(CUDA_SUCCESS, table_.cuMemAddressReserve(&address_, size.size(), alignment.size(), 0, 0));
}
Range::~Range() {
  if (address_ != 0) {
    EXPECT_ANSWER(CUDA_SUCCESS, table_.cuMemAddressFree(address_, size_.size()));
  }
}

Handle::Handle(DriverTable& table, Bytes size, int device) : table_(table) {
  const CUmemAllocationProp memory = on_device(device);
  const CUresult created = table_.cuMemCreate(&handle_, size.size(), &memory, 0);
  EXPECT_ANSWER(CUDA_SUCCESS, created);
  owned_ = created == CUDA_SUCCESS;
}
void Handle::release() {
  if (owned_) {
    owned_ = false;
    EXPECT_ANSWER(CUDA_SUCCESS, table_.cuMemRelease(handle_));
  }
}

Placed::Placed(DriverTable& table, CUdeviceptr at, const Handle& handle, Bytes size)
    : table_(table), at_(at), size_(size) {
  const CUmemAccessDesc access = access_of(0);
  const CUresult mapped = table_.cuMemMap(at, size.size(), 0, handle.get(), 0);
  EXPECT_ANSWER(CUDA_SUCCESS, mapped);
  mapped_ = mapped == CUDA_SUCCESS;
  EXPECT_ANSWER(CUDA_SUCCESS, table_.cuMemSetAccess(at, size.size(), &access, 1));
}
void Placed::unmap() {
  if (mapped_) {
    mapped_ = false;
    EXPECT_ANSWER(CUDA_SUCCESS, table_.cuMemUnmap(at_, size_.size()));
  }
}

HostMemory::HostMemory(DriverTable& table, Bytes size, Pinned pinned) : table_(table), size_(size), pinned_(pinned) {
  void* got = mmap(nullptr, (size + kPageBytes).size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(got, MAP_FAILED);
  whole_ = static_cast<std::uint8_t*>(got);
  const std::uint64_t address = DeviceAddress(got).value();
  memory_ = whole_ + (round_up(Bytes(address), kPageBytes).count() - address);
  if (pinned_ == Pinned::kYes) {
    EXPECT_ANSWER(CUDA_SUCCESS, table_.cuMemHostRegister(memory_, size.size(), 0));
  }
}
HostMemory::~HostMemory() {
  if (pinned_ == Pinned::kYes) {
    EXPECT_ANSWER(CUDA_SUCCESS, table_.cuMemHostUnregister(memory_));
  }
  munmap(whole_, (size_ + kPageBytes).size());
}

TestStream::TestStream(DriverTable& table, unsigned flags) : table_(table) {
  EXPECT_ANSWER(CUDA_SUCCESS, table_.cuStreamCreate(&stream_, flags));
}
TestStream::~TestStream() {
  if (stream_ != nullptr) {
    EXPECT_ANSWER(CUDA_SUCCESS, table_.cuStreamDestroy(stream_));
  }
}

TestEvent::TestEvent(DriverTable& table, unsigned flags) : table_(table) {
  EXPECT_ANSWER(CUDA_SUCCESS, table_.cuEventCreate(&event_, flags));
}
TestEvent::~TestEvent() {
  if (event_ != nullptr) {
    EXPECT_ANSWER(CUDA_SUCCESS, table_.cuEventDestroy(event_));
  }
}

std::vector<std::uint8_t> bytes_at(DriverTable& table, CUdeviceptr address, Bytes size, CUstream stream) {
  std::vector<std::uint8_t> bytes(size.size());
  EXPECT_ANSWER(CUDA_SUCCESS, table.cuMemcpyDtoHAsync(bytes.data(), address, size.size(), stream));
  EXPECT_ANSWER(CUDA_SUCCESS, table.cuStreamSynchronize(stream));
  return bytes;
}

int value_at(DriverTable& table, CUdeviceptr address, Bytes size, CUstream stream) {
  const std::vector<std::uint8_t> bytes = bytes_at(table, address, size, stream);
  const bool same = std::all_of(bytes.begin(), bytes.end(), [&](std::uint8_t byte) { return byte == bytes[0]; });
  return same ? bytes[0] : -1;
}

Bytes free_bytes(DriverTable& table) {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_ANSWER(CUDA_SUCCESS, table.cuMemGetInfo(&free, &total));
  return Bytes(free);
}

} // namespace stillwake
