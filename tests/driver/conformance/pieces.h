// SPDX-License-Identifier: Apache-2.0
// The pieces that conformance tests are made of: each owns one thing of the driver through the table alone, and gives
// it back when the test ends.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "tests/driver/blocker.h"

#include <cstdint>
#include <vector>

namespace stillwake {

/// What a device allocation on `device` is asked for with.
CUmemAllocationProp on_device(int device);
/// The access of one device to a range.
CUmemAccessDesc access_of(int device, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

/// A reserved range of addresses.
class Range {
public:
  Range(DriverTable& table, Bytes size, Bytes alignment = Bytes(0));
  ~Range();
  Range(const Range&) = delete;
  CUdeviceptr at(Bytes offset = Bytes(0)) const { return address_ + offset.count(); }
  Bytes size() const { return size_; }

private:
  DriverTable& table_;
  Bytes size_;
  CUdeviceptr address_ = 0;
};

/// Physical memory of device 0.
class Handle {
public:
  Handle(DriverTable& table, Bytes size, int device = 0);
  ~Handle() { release(); }
  Handle(const Handle&) = delete;
  CUmemGenericAllocationHandle get() const { return handle_; }
  /// Gives it back before the test ends.
  void release();

private:
  DriverTable& table_;
  CUmemGenericAllocationHandle handle_ = 0;
  bool owned_ = false;
};

/// A handle mapped at an address, with read and write access for device 0.
class Placed {
public:
  Placed(DriverTable& table, CUdeviceptr at, const Handle& handle, Bytes size);
  ~Placed() { unmap(); }
  Placed(const Placed&) = delete;
  void unmap();

private:
  DriverTable& table_;
  CUdeviceptr at_;
  Bytes size_;
  bool mapped_ = false;
};

/// Memory of the host, zeroed, aligned to 2 MiB; pinned on request.
class HostMemory {
public:
  enum class Pinned { kNo, kYes };
  HostMemory(DriverTable& table, Bytes size, Pinned pinned);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  std::uint8_t* at(Bytes offset = Bytes(0)) const { return memory_ + offset.count(); }
  Bytes size() const { return size_; }

private:
  DriverTable& table_;
  Bytes size_;
  std::uint8_t* whole_ = nullptr;
  std::uint8_t* memory_ = nullptr;
  Pinned pinned_;
};

/// A stream of the current context.
class TestStream {
public:
  explicit TestStream(DriverTable& table, unsigned flags = CU_STREAM_NON_BLOCKING);
  ~TestStream();
  TestStream(const TestStream&) = delete;
  CUstream get() const { return stream_; }

private:
  DriverTable& table_;
  CUstream stream_ = nullptr;
};

/// An event of the current context.
class TestEvent {
public:
  explicit TestEvent(DriverTable& table, unsigned flags = CU_EVENT_DISABLE_TIMING);
  ~TestEvent();
  TestEvent(const TestEvent&) = delete;
  CUevent get() const { return event_; }

private:
  DriverTable& table_;
  CUevent event_ = nullptr;
};

/// The bytes at a device address, after everything that was queued on the stream.
std::vector<std::uint8_t> bytes_at(DriverTable& table, CUdeviceptr address, Bytes size, CUstream stream);
/// The one value that all bytes have, or -1 where they differ.
int value_at(DriverTable& table, CUdeviceptr address, Bytes size, CUstream stream);
/// Free bytes of the current context's device.
Bytes free_bytes(DriverTable& table);

} // namespace stillwake
