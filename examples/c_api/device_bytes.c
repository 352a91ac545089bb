/* SPDX-License-Identifier: Apache-2.0 */
#include "examples/c_api/device_bytes.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The driver's types, as numbers and pointers: so this needs no header of CUDA. */
typedef int (*device_get_function)(int* device, int ordinal);
typedef int (*retain_function)(void** context, int device);
typedef int (*set_current_function)(void* context);
typedef int (*write_function)(unsigned long long device, const void* host, size_t size);
typedef int (*read_function)(void* host, unsigned long long device, size_t size);

static write_function write_bytes; /* both null on the emulation */
static read_function read_bytes;

/* ISO C has no cast from an object pointer to a function pointer; POSIX promises that the bits are the same. */
static bool find(void* library, const char* name, void* function) {
  void* found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "libcuda.so.1 lacks %s\n", name);
    return false;
  }
  memcpy(function, &found, sizeof found);
  return true;
}

bool device_bytes_open(bool is_emulated, int device) {
  device_get_function get;
  retain_function retain;
  set_current_function set_current;
  void* library;
  void* context = NULL;
  int handle = 0;
  if (is_emulated) {
    return true;
  }
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return false;
  }
  if (!find(library, "cuDeviceGet", &get) || !find(library, "cuDevicePrimaryCtxRetain", &retain) ||
      !find(library, "cuCtxSetCurrent", &set_current) || !find(library, "cuMemcpyHtoD_v2", &write_bytes) ||
      !find(library, "cuMemcpyDtoH_v2", &read_bytes)) {
    return false;
  }
  if (get(&handle, device) != 0 || retain(&context, handle) != 0 || set_current(context) != 0) {
    fprintf(stderr, "the context of device %d cannot be used\n", device);
    return false;
  }
  return true;
}

bool device_bytes_write(void* device, const void* host, size_t size) {
  if (write_bytes == NULL) {
    memcpy(device, host, size);
    return true;
  }
  return write_bytes((unsigned long long)(uintptr_t)device, host, size) == 0;
}

bool device_bytes_read(void* host, const void* device, size_t size) {
  if (read_bytes == NULL) {
    memcpy(host, device, size);
    return true;
  }
  return read_bytes(host, (unsigned long long)(uintptr_t)device, size) == 0;
}
