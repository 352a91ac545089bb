// SPDX-License-Identifier: Apache-2.0
// A Driver is the CUDA driver of this machine, or the emulated one when it was asked for. It owns the devices that were
// opened on it and stays at one address; what is opened on it must go first.
// It never takes the emulation silently: without a GPU and without being asked, opening is an error that says how to
// ask.
#pragma once

#include "../base/clock.h"
#include "../base/kept_at_exit.h"
#include "../base/log.h"
#include "../base/result.h"
#include "../base/units.h"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace stillwake {

class CallGate;
class Device;
class Emulation;
struct DriverTable;

enum class DriverKind { kCuda, kEmulated };
const char* to_string(DriverKind kind);

/// What is left unset comes from the environment, then from the default in the comment.
struct DriverOptions {
  std::optional<DriverKind> kind = {};            ///< STILLWAKE_DRIVER=cuda|emulated; default: cuda
  std::optional<int> emulated_devices = {};       ///< STILLWAKE_EMULATED_DEVICES, 1 to 64; default: 1
  std::optional<Bytes> emulated_memory = {};      ///< STILLWAKE_EMULATED_MEMORY a device, 2MiB to 1TiB; default: 8GiB
  std::optional<std::string> emulated_share = {}; ///< STILLWAKE_EMULATED_SHARE: processes of one name share the devices
  std::optional<std::string> faults = {};         ///< STILLWAKE_FAULTS, see CallGate::parse; default: none
  LogHook log = {};
  Clock* clock = nullptr; ///< Not owned; null is the steady clock. Outlives the driver.
};

/// Free and total bytes of one device, as the driver tells them (neighbours count too).
struct DeviceMemory {
  Bytes free;
  Bytes total;
};

/// Counts since the driver was opened.
struct DriverCounters {
  std::map<std::string, std::uint64_t> calls;    ///< by the call's name; calls never made are absent
  std::map<std::string, std::uint64_t> failures; ///< calls that returned an error, by name
};

/// What upper layers keep for as long as the driver lives. Destroyed before the devices.
class DriverAttachment {
public:
  virtual ~DriverAttachment() = default;
};

/// After it was moved from, a Driver may be destroyed and assigned to; `is_open` answers false, `memory` and `device`
/// answer kInvalidArgument, as does what is created on it, and every other call ends the process with a sentence.
class Driver {
public:
  /// Loads the driver and initialises it. Any thread. Errors: kDriverMissing, kDriverTooOld, kDriverCallFailed, and
  /// kInvalidArgument for a wrong value of an option or of an environment variable, naming the right ones.
  [[nodiscard]] static Result<Driver> open(DriverOptions options = {});

  Driver(Driver&&) noexcept;
  Driver& operator=(Driver&&) noexcept;
  ~Driver();

  /// Whether it owns a driver: false once it was moved from.
  bool is_open() const { return impl_ != nullptr; }
  DriverKind kind() const;
  /// "CUDA driver 13.0, 1 device (NVIDIA H200)" or "emulated driver, 1 device of 8.00 GiB".
  std::string describe() const;
  int device_count() const;

  /// Free and total bytes. Errors: kInvalidArgument for an index that does not exist, kDriverCallFailed, kLost.
  [[nodiscard]] Result<DeviceMemory> memory(DeviceIndex index);
  DriverCounters counters() const;

  // For the layers above and for tests.

  /// The device, its primary context retained at the first call. Errors as `memory`, and kDriverTooOld, naming the
  /// feature, for a device without virtual memory management.
  [[nodiscard]] Result<Device*> device(DeviceIndex index);
  DriverTable& table() const;
  CallGate& gate() const;
  /// The emulation behind the table, or null on the real driver.
  Emulation* emulation() const;
  /// The one attachment; made by `make` at the first call. Any thread.
  DriverAttachment& attachment(std::unique_ptr<DriverAttachment> (*make)(Driver&));

private:
  struct Impl;
  explicit Driver(std::unique_ptr<Impl> impl);
  Impl& impl() const;
  KeptAtExit<Impl> impl_;
};

} // namespace stillwake
