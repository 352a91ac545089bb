// SPDX-License-Identifier: Apache-2.0
// The Emulation is a CUDA driver without a GPU: device memory is ordinary memory at the same address, streams are
// threads with their own order. It refuses what the real driver refuses and makes visible what the real one punishes:
// new pages hold a pattern, a missing wait shows as wrong bytes, a touch of unmapped memory is a sticky error. See
// docs/design/emulated-driver.md.
#pragma once

#include "allocator/base/base.h"
#include "allocator/driver/driver_table.h"

#include <memory>
#include <string>
#include <vector>

namespace stillwake {

struct EmulationOptions {
  int devices = 1;
  Bytes memory = kGiB * 8;      ///< capacity of each device
  std::string share;            ///< Empty: private to this process. Else letters, digits, - and _, at most 64.
  std::string system_root = {}; ///< where /proc and /sys are read; "" but in tests
};

/// What a CPU twin of a kernel gets: the launch geometry and the parameters as cuLaunchKernel got them (copied). The
/// twin runs on the stream's thread; when it touches memory that is not mapped, it is left in the middle, without
/// running destructors, and the context is dead.
struct KernelLaunch {
  unsigned grid[3];
  unsigned block[3];
  void* const* parameters;
};
using KernelTwin = void (*)(const KernelLaunch& launch);

class Emulation {
public:
  /// Errors: kInvalidArgument for a wrong option, or one that differs from what the processes of this share began with;
  /// kOutOfHostMemory when the system gives no memory or no file for the device.
  [[nodiscard]] static Result<std::unique_ptr<Emulation>> create(const EmulationOptions& options);
  /// Work that has not begun is dropped. Memory, addresses and threads go, whatever was left open.
  ~Emulation();

  /// Fills every row of the table.
  void bind(DriverTable& table);

  /// Makes a kernel known under its name: cuModuleGetFunction finds it in any module. `parameter_sizes` are the bytes
  /// of each parameter, in order: a launch copies them, and cannot know their sizes.
  void register_kernel(const char* name, KernelTwin twin, std::vector<std::size_t> parameter_sizes);

  // Knobs of tests; all may be turned while streams run.

  /// Every later copy, memset and launch on any stream first waits this long.
  void set_stream_delay(Duration delay);
  /// The rate of copies over the bus in each direction; 0 is as fast as memory allows.
  void set_bandwidth(Bytes per_second);
  /// Changes the capacity of a device; what is taken already stays. Shared: for every process.
  void set_capacity(DeviceIndex device, Bytes capacity);
  /// Whether new memory is filled with a pattern; on at first. Off, its content is still nobody's promise, but memory
  /// that is never touched takes none of the system's.
  void set_pattern(bool on);

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
