// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/dynamic_library.h"

#include <dlfcn.h>

namespace stillwake {

Result<DynamicLibrary> DynamicLibrary::open(const char* soname) {
  void* handle = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return failure(ErrorCode::kDriverMissing, why != nullptr ? why : soname);
  }
  return DynamicLibrary(handle);
}

void* DynamicLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

} // namespace stillwake
