// SPDX-License-Identifier: Apache-2.0
// A SharedLedger lets several processes share emulated devices: each device's memory is a file in /dev/shm, and the
// ledger, a file beside them, says which process holds which bytes. What a dead process held is taken back when someone
// joins or runs out of memory. The last one to leave removes the files.
#pragma once

#include "allocator/driver/emulation/ledger.h"

#include <memory>
#include <string>
#include <vector>

namespace stillwake::emulation {

struct LedgerTable;

class SharedLedger final : public Ledger {
public:
  /// Whether a share may have this name: letters, digits, - and _, at most 64.
  static bool is_name(const std::string& name);

  /// Errors: kInvalidArgument when living processes began the share with other options, when its files belong to
  /// another user, and when something else lies under their names or the ledger is damaged; kOutOfHostMemory when
  /// /dev/shm is full or not there, or RLIMIT_FSIZE too small. Each names the file; none leaves one behind. Files of
  /// other shares without a living member are removed (share_sweep.h).
  [[nodiscard]] static Result<std::shared_ptr<SharedLedger>> join(const std::string& name, int devices, Bytes memory);
  ~SharedLedger() override;

  /// A descriptor of the device's file, the caller's to close. Errors: kOutOfHostMemory.
  [[nodiscard]] Result<int> open_device(DeviceIndex device) const;
  std::string device_path(DeviceIndex device) const;

  /// Gives back all that this member holds, and removes the files when it is the last. Idempotent.
  void leave();

  std::optional<Claim> take(DeviceIndex device, Bytes size) override;
  void give_back(DeviceIndex device, const Claim& claim) override;
  Bytes used(DeviceIndex device) const override;
  Bytes capacity(DeviceIndex device) const override;
  void set_capacity(DeviceIndex device, Bytes capacity) override;
  bool shared() const override { return true; }
  bool take_back_from_the_dead() override;

private:
  class Held; // the table's lock
  enum class Opened { kJoined, kGone };

  explicit SharedLedger(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] Result<Opened> try_join(int devices, Bytes memory);
  [[nodiscard]] Result<void> map_table(int devices, Bytes memory);
  [[nodiscard]] Result<void> make_room(const std::string& path) const;
  [[nodiscard]] Result<void> check_table();
  [[nodiscard]] Result<void> open_devices(int devices);
  /// With the file's lock held.
  void remove_files_if_alone();

  // With the table's lock held.
  bool take_back_locked();
  void release_member_locked(std::size_t member);
  bool alone_locked() const;
  std::optional<std::size_t> free_member_locked() const;

  const std::string name_;
  int file_ = -1;
  LedgerTable* table_ = nullptr;
  std::size_t member_ = 0;
  bool joined_ = false;
  std::vector<int> devices_; ///< descriptors, to punch what the dead held
};

} // namespace stillwake::emulation
