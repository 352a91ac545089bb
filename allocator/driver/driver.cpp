// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/driver.h"

#include "allocator/base/base.h"
#include "allocator/driver/device.h"
#include "allocator/driver/driver_settings.h"
#include "allocator/driver/driver_table.h"
#include "allocator/driver/emulation/emulation.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <vector>

namespace stillwake {

const char* to_string(DriverKind kind) { return kind == DriverKind::kCuda ? "cuda" : "emulated"; }

// The order of the members is the order of their lives: the attachment goes first, then the devices, then the
// emulation that answered them, then the table that it was bound to.
struct Driver::Impl {
  DriverSettings settings;
  Clock steady_clock;
  DriverTable table;
  std::unique_ptr<Emulation> emulation;
  int version = 0;
  std::vector<std::string> names; // one a device
  RankedMutex mutex{LockRank::kDriver};
  std::vector<std::unique_ptr<Device>> devices; // null until asked for; guarded by mutex
  std::once_flag attached;
  std::unique_ptr<DriverAttachment> attachment;
};

namespace {

constexpr const char* kHowToEmulate = "; to try without a GPU set STILLWAKE_DRIVER=emulated";

Result<void> initialise(DriverTable& table) {
  const CUresult result = table.cuInit(0);
  if (table.gate.was_injected(CallId::cuInit)) {
    return check_call(table, CallId::cuInit, result, "initialising the CUDA driver");
  }
  if (result == CUDA_ERROR_NO_DEVICE) {
    return failure(ErrorCode::kDriverMissing, std::string("the CUDA driver found no device") + kHowToEmulate);
  }
  if (result == CUDA_ERROR_STUB_LIBRARY) {
    return failure(ErrorCode::kDriverMissing,
                   std::string("libcuda.so.1 is the stub of a CUDA toolkit, not a driver") + kHowToEmulate);
  }
  return check_call(table, CallId::cuInit, result, "initialising the CUDA driver");
}

Result<std::vector<std::string>> device_names(DriverTable& table) {
  int count = 0;
  STILLWAKE_TRY(STILLWAKE_CALL(table, "counting devices", cuDeviceGetCount, &count));
  if (count == 0) {
    return failure(ErrorCode::kDriverMissing, std::string("the CUDA driver found no device") + kHowToEmulate);
  }
  std::vector<std::string> names;
  for (int index = 0; index < count; ++index) {
    CUdevice handle = 0;
    std::array<char, 256> name{};
    STILLWAKE_TRY(STILLWAKE_CALL(table, "finding a device", cuDeviceGet, &handle, index));
    STILLWAKE_TRY(STILLWAKE_CALL(table, "reading a device's name", cuDeviceGetName, name.data(),
                                 static_cast<int>(name.size()), handle));
    names.emplace_back(name.data());
  }
  return names;
}

} // namespace

Driver::Driver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Driver::Driver(Driver&&) noexcept = default;

Driver& Driver::operator=(Driver&&) noexcept = default;
Driver::~Driver() = default;

Result<Driver> Driver::open(DriverOptions options) {
  note_process_start();
  STILLWAKE_TRY(in_reach());
  Result<DriverSettings> settings = settle(options);
  STILLWAKE_TRY(settings);
  auto impl = std::make_unique<Impl>();
  impl->settings = std::move(*settings);
  impl->table.log = options.log;
  impl->table.clock = options.clock != nullptr ? options.clock : &impl->steady_clock;
  if (impl->settings.kind == DriverKind::kEmulated) {
    EmulationOptions emulated;
    emulated.devices = impl->settings.emulated_devices;
    emulated.memory = impl->settings.emulated_memory;
    emulated.share = impl->settings.emulated_share;
    Result<std::unique_ptr<Emulation>> emulation = Emulation::create(emulated);
    STILLWAKE_TRY(emulation);
    impl->emulation = std::move(*emulation);
    impl->emulation->bind(impl->table);
  } else {
    STILLWAKE_TRY(load_cuda_driver(impl->table));
  }
  impl->table.gate.arm(impl->settings.faults);
  STILLWAKE_TRY(initialise(impl->table));
  STILLWAKE_TRY(STILLWAKE_CALL(impl->table, "reading the driver's version", cuDriverGetVersion, &impl->version));
  Result<std::vector<std::string>> names = device_names(impl->table);
  STILLWAKE_TRY(names);
  impl->names = std::move(*names);
  impl->devices.resize(impl->names.size());
  return Driver(std::move(impl));
}

Driver::Impl& Driver::impl() const { return not_moved_from(impl_, "Driver"); }
DriverKind Driver::kind() const { return impl().settings.kind; }
int Driver::device_count() const { return static_cast<int>(impl().names.size()); }

std::string Driver::describe() const {
  const std::string count = std::to_string(device_count()) + (device_count() == 1 ? " device" : " devices");
  if (kind() == DriverKind::kEmulated) {
    return "emulated driver, " + count + " of " + readable(impl().settings.emulated_memory);
  }
  std::vector<std::string> different;
  for (const std::string& name : impl().names) {
    if (std::find(different.begin(), different.end(), name) == different.end()) {
      different.push_back(name);
    }
  }
  std::string list;
  for (const std::string& name : different) {
    list += (list.empty() ? "" : ", ") + name;
  }
  return "CUDA driver " + std::to_string(impl().version / 1000) + "." + std::to_string(impl().version % 1000 / 10) +
         ", " + count + " (" + list + ")";
}

Result<DeviceMemory> Driver::memory(DeviceIndex index) {
  const Result<Device*> found = device(index);
  STILLWAKE_TRY(found);
  const Result<std::pair<Bytes, Bytes>> info = (*found)->memory_info();
  STILLWAKE_TRY(info);
  return DeviceMemory{info->first, info->second};
}

DriverCounters Driver::counters() const {
  DriverCounters counters;
  for (int id = 0; id < static_cast<int>(CallId::kCount); ++id) {
    const CallId call = static_cast<CallId>(id);
    if (const std::uint64_t calls = gate().calls(call); calls != 0) {
      counters.calls[to_string(call)] = calls;
    }
    if (const std::uint64_t failures = gate().failures(call); failures != 0) {
      counters.failures[to_string(call)] = failures;
    }
  }
  return counters;
}

Result<Device*> Driver::device(DeviceIndex index) {
  STILLWAKE_TRY(in_reach()); // before the lock
  if (!is_open()) {
    return failure(moved_from("Driver"));
  }
  if (index.value() < 0 || index.value() >= device_count()) {
    return failure(ErrorCode::kInvalidArgument,
                   "device " + std::to_string(index.value()) + " does not exist; there " +
                       (device_count() == 1 ? "is 1 device, 0"
                                            : "are " + std::to_string(device_count()) + " devices, 0 to " +
                                                  std::to_string(device_count() - 1)));
  }
  std::unique_ptr<Device>& slot = impl().devices[static_cast<std::size_t>(index.value())];
  {
    const RankedLock lock(impl().mutex);
    if (slot != nullptr) {
      return slot.get();
    }
  }
  // No lock is held over driver calls: of two threads that open one device at once, one gives its retain back.
  Result<std::unique_ptr<Device>> opened = Device::open(impl().table, index);
  STILLWAKE_TRY(opened);
  const RankedLock lock(impl().mutex);
  if (slot == nullptr) {
    slot = std::move(*opened);
  }
  return slot.get();
}

DriverTable& Driver::table() const { return impl().table; }
CallGate& Driver::gate() const { return impl().table.gate; }
Emulation* Driver::emulation() const { return impl().emulation.get(); }

DriverAttachment& Driver::attachment(std::unique_ptr<DriverAttachment> (*make)(Driver&)) {
  std::call_once(impl().attached, [&] { impl().attachment = make(*this); });
  return *impl().attachment;
}

} // namespace stillwake
