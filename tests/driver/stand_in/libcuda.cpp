// SPDX-License-Identifier: Apache-2.0
// A driver with nothing behind it. STAND_IN_LACKS names a call that it does not have, STAND_IN_OLD one that it has in
// an older version only, STAND_IN_INIT is what cuInit answers, STAND_IN_COUNT the number of devices, STAND_IN_VIRTUAL
// whether they have virtual memory (0 or 1). Their granularity is 64 MiB, which is not ours.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdlib>
#include <cstring>

namespace {

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

bool is(const char* variable, const char* symbol) {
  const char* text = std::getenv(variable);
  return text != nullptr && std::strcmp(text, symbol) == 0;
}

CUresult init(unsigned) { return static_cast<CUresult>(number("STAND_IN_INIT", 0)); }
CUresult version(int* out) {
  *out = 13010;
  return CUDA_SUCCESS;
}
CUresult device_count(int* out) {
  *out = number("STAND_IN_COUNT", 2);
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* out, int index) {
  *out = index;
  return CUDA_SUCCESS;
}
CUresult device_name(char* out, int length, CUdevice) {
  std::strncpy(out, "Stand-in", static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}
CUresult device_memory(std::size_t* out, CUdevice) {
  *out = std::size_t{1} << 30;
  return CUDA_SUCCESS;
}
CUresult attribute(int* out, CUdevice_attribute, CUdevice) {
  *out = number("STAND_IN_VIRTUAL", 1);
  return CUDA_SUCCESS;
}
CUresult granularity(std::size_t* out, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *out = std::size_t{64} << 20;
  return CUDA_SUCCESS;
}
CUresult error_name(CUresult, const char** out) {
  *out = "CUDA_ERROR_OF_THE_STAND_IN";
  return CUDA_SUCCESS;
}
CUresult refuse() { return CUDA_ERROR_NOT_SUPPORTED; }

} // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* symbol, void** function,
                                                                               int wanted, cuuint64_t flags,
                                                                               CUdriverProcAddressQueryResult* found) {
  *function = nullptr;
  if (flags != CU_GET_PROC_ADDRESS_DEFAULT || wanted < 2000 || wanted > 13000) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (is("STAND_IN_LACKS", symbol)) {
    *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
  }
  if (is("STAND_IN_OLD", symbol)) {
    *found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_SUCCESS;
  }
  *found = CU_GET_PROC_ADDRESS_SUCCESS;
  const struct {
    const char* name;
    void* function;
  } known[] = {
      {"cuInit", reinterpret_cast<void*>(&init)},
      {"cuDriverGetVersion", reinterpret_cast<void*>(&version)},
      {"cuDeviceGetCount", reinterpret_cast<void*>(&device_count)},
      {"cuDeviceGet", reinterpret_cast<void*>(&device_get)},
      {"cuDeviceGetName", reinterpret_cast<void*>(&device_name)},
      {"cuDeviceTotalMem", reinterpret_cast<void*>(&device_memory)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&attribute)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&granularity)},
      {"cuGetErrorName", reinterpret_cast<void*>(&error_name)},
  };
  *function = reinterpret_cast<void*>(&refuse);
  for (const auto& row : known) {
    if (std::strcmp(symbol, row.name) == 0) {
      *function = row.function;
    }
  }
  return CUDA_SUCCESS;
}
