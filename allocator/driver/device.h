// SPDX-License-Identifier: Apache-2.0
// A Device is one device with its primary context retained, and the facts that were asked for when it was opened.
// A ContextScope makes that context current and puts the caller's back: every entry that calls the driver holds one.
#pragma once

#include "allocator/base/base.h"
#include "allocator/driver/driver_table.h"

#include <memory>
#include <string>

namespace stillwake {

struct DeviceFeatures {
  bool virtual_memory = false; ///< cuMemCreate and its kin: needed
  bool context_event = false;  ///< cuCtxRecordEvent: quiesce with a time-out
  int host_numa_node = -1;     ///< the NUMA node next to the device, -1 unknown
};

class Device {
public:
  [[nodiscard]] static Result<std::unique_ptr<Device>> open(DriverTable& table, DeviceIndex index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DriverTable& table() const { return table_; }
  DeviceIndex index() const { return index_; }
  CUdevice handle() const { return handle_; }
  CUcontext context() const { return context_; }
  const DeviceFeatures& features() const { return features_; }
  const std::string& name() const { return name_; }
  Bytes total_memory() const { return total_memory_; }

  /// Free and total bytes now.
  [[nodiscard]] Result<std::pair<Bytes, Bytes>> memory_info();
  /// Whether the stream belongs to this device's primary context. The default streams always do. kInvalidArgument where
  /// the driver says that it is no stream (it may crash instead); the message says who was `asking`, and which stream.
  [[nodiscard]] Result<bool> owns(Stream stream, const char* asking = "finding a stream's device");

private:
  Device(DriverTable& table, DeviceIndex index) : table_(table), index_(index) {}

  DriverTable& table_;
  DeviceIndex index_;
  CUdevice handle_ = 0;
  CUcontext context_ = nullptr;
  DeviceFeatures features_;
  std::string name_;
  Bytes total_memory_;
};

class ContextScope {
public:
  explicit ContextScope(Device& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  /// What pushing answered; a scope that could not enter pops nothing.
  const Result<void>& entered() const { return entered_; }

private:
  Device& device_;
  Result<void> entered_;
};

/// While it lives, calls of this thread spoil no capture of anybody that they have nothing to do with (asking an event,
/// pinning): the thread's capture mode is relaxed. Calls that conflict with a capture by themselves are refused as
/// ever. Where the mode cannot be changed the scope does nothing.
class RelaxedCaptureScope {
public:
  explicit RelaxedCaptureScope(DriverTable& table);
  ~RelaxedCaptureScope();
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

private:
  DriverTable& table_;
  CUstreamCaptureMode before_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  const bool exchanged_;
};

} // namespace stillwake

/// Enters the device's context for the rest of the function, or returns the error. Captures of others are left alone.
#define STILLWAKE_ENTER(device)                                                                                        \
  ::stillwake::ContextScope context_scope_((device));                                                                  \
  STILLWAKE_TRY(context_scope_.entered());                                                                             \
  const ::stillwake::RelaxedCaptureScope relaxed_scope_((device).table())
