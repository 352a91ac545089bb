// SPDX-License-Identifier: Apache-2.0
// A TorchError is the core's Error as an exception: the PyTorch face throws where the core returns. A full device has a
// class of its own, which PyTorch knows as its own error.
#pragma once

#include "../../allocator/base/result.h"

#include <c10/util/Exception.h>

#include <stdexcept>

namespace stillwake::pytorch {

class TorchError : public std::runtime_error {
public:
  explicit TorchError(Error error) : std::runtime_error(error.describe()), error_(std::move(error)) {}
  TorchError(ErrorCode code, std::string message) : TorchError(Error{code, 0, "", std::move(message)}) {}

  ErrorCode code() const { return error_.code; }
  const Error& error() const { return error_; }

private:
  Error error_;
};

/// A full device: the error that makes PyTorch's callers free memory and try again.
class FullDevice : public c10::OutOfMemoryError {
public:
  explicit FullDevice(stillwake::Error error)
      : c10::OutOfMemoryError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                              "stillwake: " + error.describe()),
        error_(std::move(error)) {}

  const stillwake::Error& error() const { return error_; }

private:
  stillwake::Error error_;
};

/// The value, or the error thrown.
template <class T> T value_or_throw(Result<T> result) {
  if (!result) {
    throw TorchError(std::move(result).error());
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

} // namespace stillwake::pytorch
