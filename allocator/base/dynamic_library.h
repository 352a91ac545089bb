// SPDX-License-Identifier: Apache-2.0
// A DynamicLibrary is one open handle of dlopen. It is closed never: code of a driver may run until the process ends.
#pragma once

#include "allocator/base/result.h"

namespace stillwake {

class DynamicLibrary {
public:
  /// Opens a library by its SONAME. The error carries dlerror's text; its code is kDriverMissing.
  [[nodiscard]] static Result<DynamicLibrary> open(const char* soname);

  /// The address of a symbol, or null.
  void* symbol(const char* name) const;

private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

} // namespace stillwake
