// SPDX-License-Identifier: Apache-2.0
// The C calls for the driver and for the host memory of all shards, and the names of numbers.
#include "shard/c_api_handles.h"

#include <fmt/format.h>

using namespace stillwake;
using namespace stillwake::c_api;

namespace {

// The numbers of the two interfaces agree; a new one in C++ has to be added in C.
static_assert(STILLWAKE_OUT_OF_DEVICE_MEMORY == static_cast<int>(ErrorCode::kOutOfDeviceMemory));
static_assert(STILLWAKE_OUT_OF_HOST_MEMORY == static_cast<int>(ErrorCode::kOutOfHostMemory));
static_assert(STILLWAKE_OVER_BUDGET == static_cast<int>(ErrorCode::kOverBudget));
static_assert(STILLWAKE_ASLEEP == static_cast<int>(ErrorCode::kAsleep));
static_assert(STILLWAKE_BUSY == static_cast<int>(ErrorCode::kBusy));
static_assert(STILLWAKE_INVALID_ARGUMENT == static_cast<int>(ErrorCode::kInvalidArgument));
static_assert(STILLWAKE_DRIVER_MISSING == static_cast<int>(ErrorCode::kDriverMissing));
static_assert(STILLWAKE_DRIVER_TOO_OLD == static_cast<int>(ErrorCode::kDriverTooOld));
static_assert(STILLWAKE_DRIVER_CALL_FAILED == static_cast<int>(ErrorCode::kDriverCallFailed));
static_assert(STILLWAKE_CORRUPTED == static_cast<int>(ErrorCode::kCorrupted));
static_assert(STILLWAKE_LOST == static_cast<int>(ErrorCode::kLost));
static_assert(STILLWAKE_RANK_FAILED == static_cast<int>(ErrorCode::kRankFailed));
static_assert(STILLWAKE_TIMED_OUT == static_cast<int>(ErrorCode::kTimedOut));
// One more than in C++: 0 is "unset", so that zeroed options ask for the default.
static_assert(STILLWAKE_DRIVER_CUDA == static_cast<int>(DriverKind::kCuda) + 1);
static_assert(STILLWAKE_DRIVER_EMULATED == static_cast<int>(DriverKind::kEmulated) + 1);
static_assert(STILLWAKE_LOG_DEBUG == static_cast<int>(LogLevel::kDebug));
static_assert(STILLWAKE_LOG_INFO == static_cast<int>(LogLevel::kInfo));
static_assert(STILLWAKE_LOG_WARNING == static_cast<int>(LogLevel::kWarning));
static_assert(STILLWAKE_LOG_ERROR == static_cast<int>(LogLevel::kError));

#define STILLWAKE_TEXT_(x) #x
#define STILLWAKE_TEXT(x) STILLWAKE_TEXT_(x)

void write_log(void* context, LogLevel level, const char* text) {
  const auto* handle = static_cast<const stillwake_driver*>(context);
  handle->log(handle->log_context, static_cast<std::int32_t>(level), text);
}

Result<DriverOptions> read_options(const stillwake_driver_options& given, stillwake_driver& handle) {
  DriverOptions options;
  STILLWAKE_TRY(check_number(given.kind, STILLWAKE_DRIVER_EMULATED, "kind", "0 unset, 1 CUDA, 2 emulated"));
  if (given.kind != STILLWAKE_DRIVER_UNSET) {
    options.kind = static_cast<DriverKind>(given.kind - 1);
  }
  if (given.emulated_devices != 0) {
    options.emulated_devices = given.emulated_devices;
  }
  if (given.emulated_memory != 0) {
    options.emulated_memory = Bytes(given.emulated_memory);
  }
  if (given.emulated_share != nullptr) {
    options.emulated_share = given.emulated_share;
  }
  if (given.faults != nullptr) {
    options.faults = given.faults;
  }
  if (given.log != nullptr) {
    handle.log = given.log;
    handle.log_context = given.log_context;
    options.log = {write_log, &handle};
  }
  return options;
}

} // namespace

extern "C" {

const char* stillwake_version(void) {
  return STILLWAKE_TEXT(STILLWAKE_VERSION_MAJOR) "." STILLWAKE_TEXT(STILLWAKE_VERSION_MINOR) "." STILLWAKE_TEXT(
      STILLWAKE_VERSION_PATCH);
}

const char* stillwake_status_name(stillwake_status status) {
  if (status == STILLWAKE_OK) {
    return "success";
  }
  const bool is_known = status >= STILLWAKE_OUT_OF_DEVICE_MEMORY && status <= STILLWAKE_TIMED_OUT;
  return is_known ? to_string(static_cast<ErrorCode>(status)) : "unknown status";
}

stillwake_status stillwake_driver_open(const stillwake_driver_options* options, stillwake_driver** driver) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    const auto given = read(options, "stillwake_driver_options");
    STILLWAKE_TRY(given);
    auto handle = std::make_unique<stillwake_driver>();
    auto asked = read_options(*given, *handle);
    STILLWAKE_TRY(asked);
    auto opened = Driver::open(*std::move(asked));
    STILLWAKE_TRY(opened);
    handle->driver = *std::move(opened);
    handle->description = handle->driver->describe();
    *driver = handle.release();
    return {};
  });
}

stillwake_status stillwake_driver_close(stillwake_driver* driver) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    if (const std::int64_t open = driver->open_below; open != 0) {
      return failure(
          ErrorCode::kBusy,
          fmt::format("{} shards, staged halves and tickets of the driver are open; release them first", open));
    }
    delete driver;
    return {};
  });
}

stillwake_status stillwake_driver_kind(stillwake_driver* driver, int32_t* kind) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    STILLWAKE_TRY(check_given(kind, "kind"));
    *kind = static_cast<int32_t>(driver->driver->kind()) + 1;
    return {};
  });
}

stillwake_status stillwake_driver_describe(stillwake_driver* driver, const char** text) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    STILLWAKE_TRY(check_given(text, "text"));
    *text = driver->description.c_str();
    return {};
  });
}

stillwake_status stillwake_driver_device_count(stillwake_driver* driver, int32_t* count) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    STILLWAKE_TRY(check_given(count, "count"));
    *count = driver->driver->device_count();
    return {};
  });
}

stillwake_status stillwake_driver_memory(stillwake_driver* driver, int32_t device, uint64_t* free_bytes,
                                         uint64_t* total_bytes) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    STILLWAKE_TRY(check_given(free_bytes, "free_bytes"));
    STILLWAKE_TRY(check_given(total_bytes, "total_bytes"));
    const auto memory = driver->driver->memory(DeviceIndex(device));
    STILLWAKE_TRY(memory);
    *free_bytes = memory->free.count();
    *total_bytes = memory->total.count();
    return {};
  });
}

stillwake_status stillwake_driver_counters(stillwake_driver* driver, stillwake_counter_function visit, void* context) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    STILLWAKE_TRY(check_given(reinterpret_cast<const void*>(visit), "visit"));
    const DriverCounters counters = driver->driver->counters();
    for (const auto& [call, count] : counters.calls) {
      const auto failed = counters.failures.find(call);
      visit(context, call.c_str(), count, failed == counters.failures.end() ? 0 : failed->second);
    }
    return {};
  });
}

stillwake_status stillwake_set_host_budget(stillwake_driver* driver, uint64_t bytes) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    STILLWAKE_TRY(in_reach());
    set_host_budget(*driver->driver, bytes == STILLWAKE_NO_BUDGET ? std::optional<Bytes>() : Bytes(bytes));
    return {};
  });
}

stillwake_status stillwake_set_pinning_threads(stillwake_driver* driver, int32_t count) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    return set_pinning_threads(*driver->driver, count);
  });
}

stillwake_status stillwake_host_pinned(stillwake_driver* driver, uint64_t* bytes) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    STILLWAKE_TRY(check_given(bytes, "bytes"));
    STILLWAKE_TRY(in_reach());
    *bytes = host_pinned(*driver->driver).count();
    return {};
  });
}

} // extern "C"
