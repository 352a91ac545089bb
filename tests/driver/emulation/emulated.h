// SPDX-License-Identifier: Apache-2.0
// An emulation with its table bound, its devices' contexts retained and the first one current: what each test starts
// from. Pinned and Mapped are pieces of memory for one test.
#pragma once

#include "allocator/driver/driver_table.h"
#include "allocator/driver/emulation/emulation.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace stillwake {

class Emulated {
public:
  explicit Emulated(EmulationOptions options = {.devices = 1, .memory = kMiB * 64, .share = {}}) {
    auto made = Emulation::create(options);
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().describe());
    emulation_ = std::move(*made);
    emulation_->bind(table_);
    EXPECT_EQ(table_.cuInit(0), CUDA_SUCCESS);
    for (int device = 0; device < options.devices; ++device) {
      CUcontext context = nullptr;
      EXPECT_EQ(table_.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
      contexts_.push_back(context);
    }
    EXPECT_EQ(table_.cuCtxPushCurrent(contexts_[0]), CUDA_SUCCESS);
  }
  ~Emulated() {
    CUcontext context = nullptr;
    table_.cuCtxPopCurrent(&context);
  }
  Emulated(const Emulated&) = delete;
  Emulated& operator=(const Emulated&) = delete;

  Emulation& operator*() { return *emulation_; }
  Emulation* operator->() { return emulation_.get(); }
  DriverTable& table() { return table_; }
  CUcontext context(int device) const { return contexts_.at(static_cast<std::size_t>(device)); }

  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(table_.cuStreamCreate(&stream, flags), CUDA_SUCCESS);
    return stream;
  }
  CUevent event() {
    CUevent event = nullptr;
    EXPECT_EQ(table_.cuEventCreate(&event, 0), CUDA_SUCCESS);
    return event;
  }
  CUresult create(Bytes size, CUmemGenericAllocationHandle& handle, int device = 0) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return table_.cuMemCreate(&handle, size.size(), &properties, 0);
  }
  CUdeviceptr reserve(Bytes size) {
    CUdeviceptr address = 0;
    EXPECT_EQ(table_.cuMemAddressReserve(&address, size.size(), 0, 0, 0), CUDA_SUCCESS);
    return address;
  }
  CUresult set_access(CUdeviceptr address, Bytes size, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                      int device = 0) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access.flags = flags;
    return table_.cuMemSetAccess(address, size.size(), &access, 1);
  }
  /// A function of a module, of a kernel that was registered.
  CUfunction function(const char* name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    EXPECT_EQ(table_.cuModuleLoadData(&module, "an image"), CUDA_SUCCESS);
    EXPECT_EQ(table_.cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
    return function;
  }
  CUresult launch(CUfunction function, CUstream stream, std::vector<void*> parameters) {
    return table_.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.data(), nullptr);
  }

private:
  DriverTable table_;
  std::unique_ptr<Emulation> emulation_;
  std::vector<CUcontext> contexts_;
};

/// Mapped, readable and writable device memory, given back at the end of the test.
class Mapped {
public:
  Mapped(Emulated& emulated, Bytes size) : emulated_(emulated), size_(size) {
    EXPECT_EQ(emulated.create(size, handle_), CUDA_SUCCESS);
    address_ = emulated.reserve(size);
    map();
  }
  ~Mapped() {
    DriverTable& table = emulated_.table();
    table.cuMemUnmap(address_, size_.size());
    table.cuMemRelease(handle_);
    EXPECT_EQ(table.cuMemAddressFree(address_, size_.size()), CUDA_SUCCESS);
  }
  void map() {
    EXPECT_EQ(emulated_.table().cuMemMap(address_, size_.size(), 0, handle_, 0), CUDA_SUCCESS);
    EXPECT_EQ(emulated_.set_access(address_, size_), CUDA_SUCCESS);
  }
  void unmap() { EXPECT_EQ(emulated_.table().cuMemUnmap(address_, size_.size()), CUDA_SUCCESS); }

  CUdeviceptr at(std::uint64_t offset = 0) const { return address_ + offset; }
  unsigned char* bytes() const { return reinterpret_cast<unsigned char*>(address_); }
  CUmemGenericAllocationHandle handle() const { return handle_; }

private:
  Emulated& emulated_;
  Bytes size_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
};

/// Pinned host memory, all zeros at first.
class Pinned {
public:
  Pinned(Emulated& emulated, Bytes size) : emulated_(emulated), bytes_(size.size(), 0) {
    EXPECT_EQ(emulated.table().cuMemHostRegister(bytes_.data(), bytes_.size(), 0), CUDA_SUCCESS);
  }
  ~Pinned() { emulated_.table().cuMemHostUnregister(bytes_.data()); }
  unsigned char* data() { return bytes_.data(); }

private:
  Emulated& emulated_;
  std::vector<unsigned char> bytes_;
};

} // namespace stillwake
