// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/emulation.h"

#include "allocator/driver/emulation/device_file.h"
#include "allocator/driver/emulation/shared_ledger.h"
#include "allocator/driver/emulation/state.h"

namespace stillwake {
namespace {

constexpr int kMostDevices = 64; // access is a bit a device

} // namespace

Result<std::unique_ptr<Emulation>> Emulation::create(const EmulationOptions& options) {
  if (options.devices < 1 || options.devices > kMostDevices) {
    return failure(ErrorCode::kInvalidArgument, "the number of emulated devices is " + std::to_string(options.devices) +
                                                    "; it must be 1 to " + std::to_string(kMostDevices));
  }
  if (options.memory < kPageBytes) {
    return failure(ErrorCode::kInvalidArgument, "an emulated device of " + exact(options.memory) +
                                                    " is too small; it must have at least " + exact(kPageBytes));
  }
  if (!options.share.empty() && !emulation::SharedLedger::is_name(options.share)) {
    return failure(ErrorCode::kInvalidArgument, "\"" + options.share +
                                                    "\" cannot name an emulated share; use 1 to 64 letters, digits, - "
                                                    "and _");
  }
  note_process_start(); // so that a child made by fork knows that it is one
  std::shared_ptr<emulation::SharedLedger> shared;
  if (!options.share.empty()) {
    auto joined = emulation::SharedLedger::join(options.share, options.devices, options.memory);
    if (!joined) {
      return failure(std::move(joined).error());
    }
    shared = std::move(*joined);
  }
  std::shared_ptr<emulation::Ledger> ledger = shared;
  if (!ledger) {
    ledger = std::make_shared<emulation::PrivateLedger>(options.devices, options.memory);
  }
  std::vector<std::shared_ptr<emulation::DeviceMemory>> memories;
  for (int device = 0; device < options.devices; ++device) {
    auto file = shared ? shared->open_device(DeviceIndex(device)) : emulation::private_device_file();
    if (!file) {
      return failure(std::move(file).error());
    }
    std::string path = shared ? shared->device_path(DeviceIndex(device)) : "the memory file of an emulated device";
    memories.push_back(std::make_shared<emulation::DeviceMemory>(*file, std::move(path), DeviceIndex(device), ledger,
                                                                 options.system_root));
  }
  return std::unique_ptr<Emulation>(new Emulation(std::make_unique<State>(std::move(memories), std::move(shared))));
}

Emulation::Emulation(std::unique_ptr<State> state) : state_(std::move(state)) {}

Emulation::~Emulation() {
  if (driver_is_out_of_reach()) {
    // The threads may be gone (after a fork) or in the middle of something (at exit): nothing can be waited for. But
    // memory that a file holds would outlive the process.
    state_.release()->leave_share();
  }
}

void Emulation::register_kernel(const char* name, KernelTwin twin, std::vector<std::size_t> parameter_sizes) {
  state_->register_kernel(name, twin, std::move(parameter_sizes));
}

void Emulation::set_stream_delay(Duration delay) { state_->delay = delay.count(); }
void Emulation::set_bandwidth(Bytes per_second) { state_->bandwidth = per_second.count(); }
void Emulation::set_capacity(DeviceIndex device, Bytes capacity) { state_->memory(device).set_capacity(capacity); }
void Emulation::set_pattern(bool on) { state_->set_pattern(on); }

Bytes Emulation::used(DeviceIndex device) const { return state_->memory(device).used(); }
std::uint64_t Emulation::live_handles() const { return state_->addresses().live_handles(); }
std::uint64_t Emulation::live_reservations() const { return state_->addresses().live_reservations(); }
std::uint64_t Emulation::live_registrations() const { return state_->registrations().count(); }
std::uint64_t Emulation::live_streams() const { return state_->live_streams(); }
std::uint64_t Emulation::live_events() const { return state_->live_events(); }
Bytes Emulation::resident(DeviceIndex device) const { return state_->memory(device).resident(); }

} // namespace stillwake
