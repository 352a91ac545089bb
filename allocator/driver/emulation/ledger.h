// SPDX-License-Identifier: Apache-2.0
// A Ledger knows, for every device, the capacity, what is taken, and the next offset that was never given out.
// Private to a process it is a few numbers; shared, it lives in a file (shared_ledger.h).
#pragma once

#include "allocator/base/base.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace stillwake::emulation {

/// Bytes of a device's file that are taken: [offset, offset + size).
struct Claim {
  std::uint64_t offset = 0;
  Bytes size;
  std::uint32_t entry = 0; ///< The ledger's own place for it.
};

/// Any thread.
class Ledger {
public:
  virtual ~Ledger() = default;
  /// Nothing when it would exceed the capacity.
  virtual std::optional<Claim> take(DeviceIndex device, Bytes size) = 0;
  virtual void give_back(DeviceIndex device, const Claim& claim) = 0;
  virtual Bytes used(DeviceIndex device) const = 0;
  virtual Bytes capacity(DeviceIndex device) const = 0;
  virtual void set_capacity(DeviceIndex device, Bytes capacity) = 0;
  /// Whether other processes count in it.
  virtual bool shared() const = 0;
  /// Frees what dead processes held; whether there was one.
  virtual bool take_back_from_the_dead() { return false; }
};

class PrivateLedger final : public Ledger {
public:
  PrivateLedger(int devices, Bytes capacity) : rows_(static_cast<std::size_t>(devices)) {
    for (Row& row : rows_) {
      row.capacity = capacity;
    }
  }

  std::optional<Claim> take(DeviceIndex device, Bytes size) override {
    const std::lock_guard lock(mutex_);
    Row& row = at(device);
    if (row.used > row.capacity || size > row.capacity - row.used) {
      return std::nullopt;
    }
    const Claim claim{row.next_offset, size};
    row.used += size;
    row.next_offset += size.count();
    return claim;
  }
  void give_back(DeviceIndex device, const Claim& claim) override {
    const std::lock_guard lock(mutex_);
    at(device).used -= claim.size;
  }
  Bytes used(DeviceIndex device) const override {
    const std::lock_guard lock(mutex_);
    return rows_[static_cast<std::size_t>(device.value())].used;
  }
  Bytes capacity(DeviceIndex device) const override {
    const std::lock_guard lock(mutex_);
    return rows_[static_cast<std::size_t>(device.value())].capacity;
  }
  void set_capacity(DeviceIndex device, Bytes capacity) override {
    const std::lock_guard lock(mutex_);
    at(device).capacity = capacity;
  }
  bool shared() const override { return false; }

private:
  struct Row {
    Bytes capacity;
    Bytes used;
    std::uint64_t next_offset = 0;
  };
  Row& at(DeviceIndex device) { return rows_[static_cast<std::size_t>(device.value())]; }

  mutable std::mutex mutex_;
  std::vector<Row> rows_; // guarded by mutex_
};

} // namespace stillwake::emulation
