// SPDX-License-Identifier: Apache-2.0
#include "shard/c_api_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <new>
#include <stdexcept>
#include <system_error>

namespace stillwake::c_api {
namespace {

/// Larger than any structure of ours will be: a struct_size beyond it was never set.
constexpr std::size_t kLargestStructure = 4096;

/// The one thing of the library that belongs to a thread: a C caller has nowhere else to be told a sentence. A plain
/// buffer, so that "out of host memory" can be told without memory.
struct LastError {
  std::array<char, 2048> text{};
  int driver_error = 0;
  const char* call = "";
};
thread_local LastError last_error;

stillwake_status keep(ErrorCode code, int driver_error, const char* call, const char* text) noexcept {
  std::snprintf(last_error.text.data(), last_error.text.size(), "%s", text);
  last_error.driver_error = driver_error;
  last_error.call = call;
  return static_cast<stillwake_status>(code);
}

/// The structure's first member, wherever the caller put the structure.
std::size_t size_of(const void* structure) {
  std::size_t size = 0;
  std::memcpy(&size, structure, sizeof size);
  return size;
}

Result<std::size_t> checked_size(const void* structure, std::size_t own_size, const char* name) {
  const std::size_t size = size_of(structure);
  if (size < sizeof(std::size_t) || size > kLargestStructure) {
    return failure(ErrorCode::kInvalidArgument,
                   fmt::format("{}: struct_size is {}; set it to sizeof the structure, {} here", name, size, own_size));
  }
  return size;
}

} // namespace

stillwake_status fail(const Error& error) noexcept {
  try {
    return keep(error.code, error.driver_error, error.call, error.describe().c_str());
  } catch (...) { // describing took memory that is not there
    return keep(error.code, error.driver_error, error.call, error.message.c_str());
  }
}

stillwake_status fail_with_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return keep(ErrorCode::kOutOfHostMemory, 0, "", "out of host memory: the library could not allocate");
  } catch (const std::length_error&) {
    return keep(ErrorCode::kOutOfHostMemory, 0, "", "out of host memory: a list longer than memory can hold");
  } catch (const std::system_error& error) {
    std::array<char, 256> text{};
    std::snprintf(text.data(), text.size(), "out of host memory: the system refused: %s", error.what());
    return keep(ErrorCode::kOutOfHostMemory, 0, "", text.data());
  } catch (const std::exception& error) {
    std::array<char, 256> text{};
    std::snprintf(text.data(), text.size(), "an exception reached the C interface: %s", error.what());
    return keep(ErrorCode::kDriverCallFailed, 0, "", text.data());
  } catch (...) {
    return keep(ErrorCode::kDriverCallFailed, 0, "", "an exception of unknown type reached the C interface");
  }
}

Result<void> check_given(const void* pointer, const char* what) {
  if (pointer == nullptr) {
    return failure(ErrorCode::kInvalidArgument, fmt::format("{} is null; a valid one is needed", what));
  }
  return {};
}

Result<void> read_structure(void* own, std::size_t own_size, const void* given, const char* name) {
  const auto size = checked_size(given, own_size, name);
  STILLWAKE_TRY(size);
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (*size > own_size && std::any_of(bytes + own_size, bytes + *size, [](unsigned char byte) { return byte != 0; })) {
    return failure(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: the {} bytes after the {} that this library knows must be zero: they ask for what it "
                    "cannot do",
                    name, *size - own_size, own_size));
  }
  std::memcpy(own, given, std::min(*size, own_size));
  return {};
}

Result<void> write_structure(void* given, const void* own, std::size_t own_size, const char* name) {
  const auto size = checked_size(given, own_size, name);
  STILLWAKE_TRY(size);
  // The caller's struct_size stays as it is.
  constexpr std::size_t kFirst = sizeof(std::size_t);
  std::memcpy(static_cast<unsigned char*>(given) + kFirst, static_cast<const unsigned char*>(own) + kFirst,
              std::min(*size, own_size) - kFirst);
  return {};
}

Result<void> check_number(std::int32_t value, std::int32_t last, const char* what, const char* right) {
  if (value < 0 || value > last) {
    return failure(ErrorCode::kInvalidArgument, fmt::format("{} is {}; right are {}", what, value, right));
  }
  return {};
}

Result<std::optional<Duration>> read_timeout(std::int32_t has_timeout, std::uint64_t nanoseconds) {
  if (has_timeout == 0) {
    return std::optional<Duration>();
  }
  constexpr auto kLongest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (nanoseconds > kLongest) {
    return failure(
        ErrorCode::kInvalidArgument,
        fmt::format("timeout_ns is {}; give 0 to {} (a negative number becomes one beyond)", nanoseconds, kLongest));
  }
  return std::optional<Duration>(Duration(static_cast<std::int64_t>(nanoseconds)));
}

} // namespace stillwake::c_api

using namespace stillwake::c_api;

extern "C" {

const char* stillwake_last_error(void) { return last_error.text.data(); }
int32_t stillwake_last_driver_error(void) { return last_error.driver_error; }
const char* stillwake_last_driver_call(void) { return last_error.call; }

} // extern "C"
