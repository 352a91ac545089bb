// SPDX-License-Identifier: Apache-2.0
// STILLWAKE_CHECK aborts with both values, in release builds too: it guards our own invariants, never the caller's
// input.
#pragma once

#include "allocator/base/hexadecimal.h"

#include <string>
#include <type_traits>

namespace stillwake::detail {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& left,
                               const std::string& right);

template <class T> std::string printable(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<long long>(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_pointer_v<T>) {
    return hexadecimal(static_cast<const void*>(value));
  } else if constexpr (std::is_same_v<T, DeviceAddress>) {
    return hexadecimal(value);
  } else if constexpr (std::is_convertible_v<T, std::string>) {
    return value;
  } else if constexpr (requires { value.count(); }) {
    return std::to_string(value.count());
  } else {
    return std::to_string(value.value());
  }
}

} // namespace stillwake::detail

#define STILLWAKE_CHECK_OP_(a, op, b)                                                                                  \
  do {                                                                                                                 \
    const auto& check_a_ = (a);                                                                                        \
    const auto& check_b_ = (b);                                                                                        \
    if (!(check_a_ op check_b_)) [[unlikely]] {                                                                        \
      ::stillwake::detail::check_failed(__FILE__, __LINE__, #a " " #op " " #b,                                         \
                                        ::stillwake::detail::printable(check_a_),                                      \
                                        ::stillwake::detail::printable(check_b_));                                     \
    }                                                                                                                  \
  } while (false)

#define STILLWAKE_CHECK_EQ(a, b) STILLWAKE_CHECK_OP_(a, ==, b)
#define STILLWAKE_CHECK_NE(a, b) STILLWAKE_CHECK_OP_(a, !=, b)
#define STILLWAKE_CHECK_LE(a, b) STILLWAKE_CHECK_OP_(a, <=, b)
#define STILLWAKE_CHECK_LT(a, b) STILLWAKE_CHECK_OP_(a, <, b)
#define STILLWAKE_CHECK(condition) STILLWAKE_CHECK_EQ(static_cast<bool>(condition), true)
