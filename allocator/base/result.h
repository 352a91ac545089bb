// SPDX-License-Identifier: Apache-2.0
// A Result is a value or an Error. Expected failure is returned, never thrown.
#pragma once

#include "error.h"

#include <tl/expected.hpp>

#include <utility>

namespace stillwake {

template <class T> using Result = tl::expected<T, Error>;

/// Makes the failing side of any Result.
inline tl::unexpected<Error> failure(Error error) { return tl::unexpected<Error>(std::move(error)); }
inline tl::unexpected<Error> failure(ErrorCode code, std::string message) {
  Error error;
  error.code = code;
  error.message = std::move(message);
  return tl::unexpected<Error>(std::move(error));
}

} // namespace stillwake

/// Returns from the calling function with the error of `expression`, which is a Result.
#define STILLWAKE_TRY(expression)                                                                                      \
  do {                                                                                                                 \
    auto&& stillwake_result_ = (expression);                                                                           \
    if (!stillwake_result_) {                                                                                          \
      return ::stillwake::failure(std::move(stillwake_result_).error());                                               \
    }                                                                                                                  \
  } while (false)
