// SPDX-License-Identifier: Apache-2.0
// What an engine does with its own driver calls and Stillwake does not offer: copies, and memory outside every shard.
// A program of yours uses the CUDA runtime here. The examples go through the table of the driver they opened instead,
// so that one program runs on a GPU and on the emulation; device_copy.cpp is the only file of theirs that looks behind
// the public headers.
#pragma once

#include "shard/stillwake.h"

#include <cstddef>
#include <memory>

namespace example {

/// One pinned buffer and one stream: what a thread copies with. Calls queue and return; the buffer is the caller's
/// again after `synchronize`. One thread at a time.
class CopyLane {
public:
  [[nodiscard]] static stillwake::Result<CopyLane> open(stillwake::Driver& driver, stillwake::DeviceIndex device,
                                                        stillwake::Bytes buffer);
  CopyLane(CopyLane&&) noexcept;
  ~CopyLane();

  std::byte* buffer() const;
  stillwake::Bytes capacity() const;
  stillwake::Stream stream() const;

  /// Copies [at, at + size) of the buffer to the device, or back.
  [[nodiscard]] stillwake::Result<void> to_device(void* device, stillwake::Bytes at, stillwake::Bytes size);
  [[nodiscard]] stillwake::Result<void> to_host(stillwake::Bytes at, const void* device, stillwake::Bytes size);
  [[nodiscard]] stillwake::Result<void> fill(void* device, unsigned char value, stillwake::Bytes size);
  [[nodiscard]] stillwake::Result<void> synchronize();

private:
  struct State;
  explicit CopyLane(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Device memory of a neighbour, who knows nothing of Stillwake: plain cuMemAlloc.
class NeighbourMemory {
public:
  [[nodiscard]] static stillwake::Result<NeighbourMemory> take(stillwake::Driver& driver, stillwake::DeviceIndex device,
                                                               stillwake::Bytes size);
  NeighbourMemory(NeighbourMemory&&) noexcept;
  ~NeighbourMemory();

  void* pointer() const { return pointer_; }

private:
  NeighbourMemory(stillwake::Driver& driver, stillwake::DeviceIndex device, void* pointer)
      : driver_(&driver), device_(device), pointer_(pointer) {}

  stillwake::Driver* driver_;
  stillwake::DeviceIndex device_;
  void* pointer_;
};

} // namespace example
