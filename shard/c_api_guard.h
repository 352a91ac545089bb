// SPDX-License-Identifier: Apache-2.0
// The border between C and C++: what a C call answers, the last error of each thread, and how the structures and
// numbers that C hands in are read. Nothing thrown crosses it.
#pragma once

#include "shard/stillwake.h"
#include "shard/stillwake_c.h"

#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace stillwake::c_api {

/// Keeps the error for stillwake_last_error; answers its number. Never throws.
stillwake_status fail(const Error& error) noexcept;
/// The error for the exception that is being handled.
stillwake_status fail_with_exception() noexcept;

/// Runs the body of a C call, which answers Result<void>.
template <class Work> stillwake_status guarded(Work&& work) noexcept {
  try {
    const Result<void> done = std::forward<Work>(work)();
    return done ? STILLWAKE_OK : fail(done.error());
  } catch (...) {
    return fail_with_exception();
  }
}

/// kInvalidArgument, "`what` is null; `right` is needed".
[[nodiscard]] Result<void> check_given(const void* pointer, const char* what);

/// Copies the part that both know of a structure that begins with its struct_size; see stillwake_c.h for the rule.
[[nodiscard]] Result<void> read_structure(void* own, std::size_t own_size, const void* given, const char* name);
[[nodiscard]] Result<void> write_structure(void* given, const void* own, std::size_t own_size, const char* name);

/// The caller's structure as this library knows it; null is one of zeros.
template <class Structure> [[nodiscard]] Result<Structure> read(const Structure* given, const char* name) {
  static_assert(std::is_trivially_copyable_v<Structure> && offsetof(Structure, struct_size) == 0);
  Structure own{};
  if (given != nullptr) {
    STILLWAKE_TRY(read_structure(&own, sizeof own, given, name));
  }
  return own;
}

template <class Structure> [[nodiscard]] Result<void> write(Structure* given, const Structure& own, const char* name) {
  static_assert(std::is_trivially_copyable_v<Structure> && offsetof(Structure, struct_size) == 0);
  STILLWAKE_TRY(check_given(given, name));
  return write_structure(given, &own, sizeof own, name);
}

/// A number as the enumeration it stands for, when it is one of 0 to `last`.
[[nodiscard]] Result<void> check_number(std::int32_t value, std::int32_t last, const char* what, const char* right);
template <class Enumeration>
[[nodiscard]] Result<Enumeration> read(std::int32_t value, Enumeration last, const char* what, const char* right) {
  STILLWAKE_TRY(check_number(value, static_cast<std::int32_t>(last), what, right));
  return static_cast<Enumeration>(value);
}

/// A timeout in nanoseconds where the caller has one.
[[nodiscard]] Result<std::optional<Duration>> read_timeout(std::int32_t has_timeout, std::uint64_t nanoseconds);

} // namespace stillwake::c_api
