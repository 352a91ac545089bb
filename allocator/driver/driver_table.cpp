// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/driver_table.h"

#include "allocator/driver/error_names.h"

#include <utility>

namespace stillwake {
namespace {

ErrorCode code_of(CUresult result) {
  if (is_sticky(result)) {
    return ErrorCode::kLost;
  }
  return result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kOutOfDeviceMemory : ErrorCode::kDriverCallFailed;
}

// Asks the driver, which may know errors newer than our list; the list answers while the driver cannot be asked.
std::string name_of(const DriverTable& table, CUresult result) {
  const char* name = nullptr;
  if (!table.cuGetErrorName || table.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    name = error_name(result);
  }
  return name != nullptr ? name : "unnamed error " + std::to_string(static_cast<int>(result));
}

} // namespace

std::string note_of(const DriverTable& table, CallId call) {
  if (table.gate.was_injected(call)) {
    return std::string("an injected fault: ") + to_string(call) + " was not called";
  }
  return table.explain != nullptr ? table.explain(call) : std::string();
}

Error driver_error(const DriverTable& table, CallId call, CUresult result, std::string doing) {
  Error error;
  error.code = code_of(result);
  error.driver_error = static_cast<int>(result);
  error.call = to_string(call);
  error.note = note_of(table, call);
  error.message = std::move(doing) + ": " + name_of(table, result);
  return error;
}

Result<void> check_call(const DriverTable& table, CallId call, CUresult result, const char* doing) {
  if (result != CUDA_SUCCESS) [[unlikely]] {
    return failure(driver_error(table, call, result, doing));
  }
  return {};
}

} // namespace stillwake
