// SPDX-License-Identifier: Apache-2.0
// A DeviceMemory is the memory of one emulated device: one sparse file, and a ledger that says what of it is taken.
// Offsets are given out once and never again, so a stale mapping can never see another allocation's bytes. Released
// bytes are punched out and go back to the system.
#pragma once

#include "allocator/base/base.h"
#include "allocator/driver/emulation/ledger.h"

#include <atomic>
#include <cuda.h>
#include <memory>
#include <optional>
#include <string>

namespace stillwake::emulation {

class DeviceMemory {
public:
  /// Takes over the file, which sentences call `path`; the ledger counts for the device of this index. /proc and /sys
  /// are read below `system_root`.
  DeviceMemory(int file, std::string path, DeviceIndex device, std::shared_ptr<Ledger> ledger, std::string system_root);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  int file() const { return file_; }
  DeviceIndex device() const { return device_; }
  Bytes capacity() const { return ledger_->capacity(device_); }
  Bytes used() const { return ledger_->used(device_); }
  void set_capacity(Bytes capacity) { ledger_->set_capacity(device_, capacity); }
  Bytes resident() const;

  /// Whether new memory is filled with the pattern; on by default. Off, it costs nothing until it is touched.
  void set_pattern(bool on) { pattern_ = on; }

  /// Takes `size` bytes, a multiple of 2 MiB, filled with the pattern. CUDA_ERROR_OUT_OF_MEMORY when the device or the
  /// system is full; then nothing is taken, and a refusal note says what the system lacks.
  CUresult take(Bytes size, Claim& claim);
  void give_back(const Claim& claim);

private:
  std::optional<std::string> over_limits(const Claim& claim) const;
  int fill(const Claim& claim);

  const int file_;
  const std::string path_;
  const DeviceIndex device_;
  const std::shared_ptr<Ledger> ledger_;
  const std::string system_root_;
  std::atomic<bool> pattern_{true};
};

/// One physical allocation. Its bytes go back when the last owner, a handle or a mapping, lets go.
class Physical {
public:
  Physical(std::shared_ptr<DeviceMemory> memory, Claim claim) : memory_(std::move(memory)), claim_(claim) {}
  ~Physical() { memory_->give_back(claim_); }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  DeviceIndex device() const { return memory_->device(); }
  int file() const { return memory_->file(); }
  std::uint64_t offset() const { return claim_.offset; }
  std::uint64_t size() const { return claim_.size.count(); }

private:
  const std::shared_ptr<DeviceMemory> memory_;
  const Claim claim_;
};

} // namespace stillwake::emulation
