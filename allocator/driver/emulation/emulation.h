// SPDX-License-Identifier: Apache-2.0
// The Emulation is a CUDA driver without a GPU: device memory is ordinary memory at the same address, streams are
// threads with their own order. It refuses what the real driver refuses and makes visible what the real one punishes:
// new pages hold a pattern, a missing wait shows as wrong bytes, a touch of unmapped memory is a sticky error. See
// docs/design/emulated-driver.md.
#pragma once

#include "allocator/base/base.h"
#include "allocator/driver/driver_table.h"

#include <functional>
#include <memory>
#include <string>

namespace stillwake {

struct EmulationOptions {
  int devices = 1;
  Bytes memory = kGiB * 8; ///< capacity of each device
  std::string share;       ///< empty: private to this process
};

/// What a CPU twin of a kernel gets: the launch geometry and the parameters as cuLaunchKernel got them (copied).
struct KernelLaunch {
  unsigned grid[3];
  unsigned block[3];
  void* const* parameters;
};
using KernelTwin = void (*)(const KernelLaunch& launch);

class Emulation {
public:
  [[nodiscard]] static Result<std::unique_ptr<Emulation>> create(const EmulationOptions& options);
  ~Emulation();

  /// Fills every row of the table.
  void bind(DriverTable& table);

  /// Makes a kernel known under its name: cuModuleGetFunction finds it in any module. Process-independent, per
  /// emulation.
  void register_kernel(const char* name, KernelTwin twin);

  // Knobs of tests; all may be turned while streams run.

  /// Every later copy, memset and launch on any stream first waits this long.
  void set_stream_delay(Duration delay);
  /// The rate of copies over the bus in each direction; 0 is as fast as memory allows.
  void set_bandwidth(Bytes per_second);
  /// Changes the capacity of a device; what is taken already stays.
  void set_capacity(DeviceIndex device, Bytes capacity);

  // What tests read.

  Bytes used(DeviceIndex device) const; ///< physical bytes that handles and cuMemAlloc hold
  std::uint64_t live_handles() const;   ///< cuMemCreate without cuMemRelease, or still mapped
  std::uint64_t live_reservations() const;
  std::uint64_t live_registrations() const;
  std::uint64_t live_streams() const;
  std::uint64_t live_events() const;
  Bytes resident(DeviceIndex device) const; ///< bytes that the system really holds for the device's memory

  class State;

private:
  explicit Emulation(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

} // namespace stillwake
