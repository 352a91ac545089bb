// SPDX-License-Identifier: Apache-2.0
// Every driver call that Stillwake makes: a row gives the call, and the version that is asked for and that names its
// type. To add a call: add a row here, and its twin in emulation/bindings.cpp; the conformance suite covers both.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

// X(call, version): needed, its absence is "driver too old". O(call, version): optional, ask `if (table.call)` first.
#define STILLWAKE_DRIVER_CALLS(X, O)                                                                                   \
  X(cuInit, 2000)                                                                                                      \
  X(cuDriverGetVersion, 2020)                                                                                          \
  X(cuGetErrorName, 6000)                                                                                              \
  X(cuDeviceGetCount, 2000)                                                                                            \
  X(cuDeviceGet, 2000)                                                                                                 \
  X(cuDeviceGetName, 2000)                                                                                             \
  X(cuDeviceGetAttribute, 2000)                                                                                        \
  X(cuDeviceTotalMem, 3020)                                                                                            \
  X(cuDeviceCanAccessPeer, 4000)                                                                                       \
  X(cuDevicePrimaryCtxRetain, 7000)                                                                                    \
  X(cuDevicePrimaryCtxRelease, 11000)                                                                                  \
  X(cuCtxPushCurrent, 4000)                                                                                            \
  X(cuCtxPopCurrent, 4000)                                                                                             \
  X(cuCtxGetCurrent, 4000)                                                                                             \
  X(cuCtxSynchronize, 2000)                                                                                            \
  O(cuCtxRecordEvent, 12050)                                                                                           \
  X(cuMemGetInfo, 3020)                                                                                                \
  X(cuMemAlloc, 3020)                                                                                                  \
  X(cuMemFree, 3020)                                                                                                   \
  X(cuMemAddressReserve, 10020)                                                                                        \
  X(cuMemAddressFree, 10020)                                                                                           \
  X(cuMemCreate, 10020)                                                                                                \
  X(cuMemRelease, 10020)                                                                                               \
  X(cuMemMap, 10020)                                                                                                   \
  X(cuMemUnmap, 10020)                                                                                                 \
  X(cuMemSetAccess, 10020)                                                                                             \
  X(cuMemGetAllocationGranularity, 10020)                                                                              \
  X(cuMemHostRegister, 6050)                                                                                           \
  X(cuMemHostUnregister, 4000)                                                                                         \
  X(cuMemcpyHtoDAsync, 3020)                                                                                           \
  X(cuMemcpyDtoHAsync, 3020)                                                                                           \
  X(cuMemcpyDtoDAsync, 3020)                                                                                           \
  X(cuMemsetD8Async, 3020)                                                                                             \
  X(cuStreamCreate, 2000)                                                                                              \
  X(cuStreamDestroy, 4000)                                                                                             \
  X(cuStreamSynchronize, 2000)                                                                                         \
  X(cuStreamQuery, 2000)                                                                                               \
  X(cuStreamWaitEvent, 3020)                                                                                           \
  X(cuStreamIsCapturing, 10000)                                                                                        \
  X(cuStreamGetCtx, 9020)                                                                                              \
  X(cuStreamBeginCapture, 10010)                                                                                       \
  X(cuStreamEndCapture, 10000)                                                                                         \
  X(cuThreadExchangeStreamCaptureMode, 10010)                                                                          \
  X(cuGraphInstantiateWithFlags, 11040)                                                                                \
  X(cuGraphLaunch, 10000)                                                                                              \
  X(cuGraphDestroy, 10000)                                                                                             \
  X(cuGraphExecDestroy, 10000)                                                                                         \
  X(cuEventCreate, 2000)                                                                                               \
  X(cuEventDestroy, 4000)                                                                                              \
  X(cuEventRecord, 2000)                                                                                               \
  X(cuEventQuery, 2000)                                                                                                \
  X(cuEventSynchronize, 2000)                                                                                          \
  X(cuEventElapsedTime, 2000)                                                                                          \
  X(cuLaunchHostFunc, 10000)                                                                                           \
  X(cuLaunchKernel, 4000)                                                                                              \
  X(cuModuleLoadData, 2000)                                                                                            \
  X(cuModuleUnload, 2000)                                                                                              \
  X(cuModuleGetFunction, 2000)

namespace stillwake {

/// The number of a call, for counters and for fault injection.
enum class CallId {
#define STILLWAKE_ROW(call, version) call,
  STILLWAKE_DRIVER_CALLS(STILLWAKE_ROW, STILLWAKE_ROW)
#undef STILLWAKE_ROW
      kCount
};

/// The call's name, "cuMemCreate" for instance.
const char* to_string(CallId call);

} // namespace stillwake
