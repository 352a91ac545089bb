// SPDX-License-Identifier: Apache-2.0
// Row by row: the method that answers a driver call. The rules that hold for every call stand here once.
#include "allocator/driver/emulation/refusal_note.h"
#include "allocator/driver/emulation/state.h"

#include <new>
#include <system_error>

namespace stillwake {
namespace {

// Calls that answer before cuInit.
constexpr bool answers_early(CallId id) {
  return id == CallId::cuInit || id == CallId::cuDriverGetVersion || id == CallId::cuGetErrorName;
}

template <auto Method, CallId Id, class... A>
void bind_row(Entry<CUresult(A...)>& entry, CallGate& gate, Emulation::State& state) {
  entry.bind(gate, Id, &state, [](void* target, A... arguments) -> CUresult {
    auto& at = *static_cast<Emulation::State*>(target);
    if (emulation::in_host_function()) {
      return CUDA_ERROR_NOT_PERMITTED;
    }
    if (!answers_early(Id) && !at.initialised()) {
      return CUDA_ERROR_NOT_INITIALIZED;
    }
    emulation::begin_call(Id);
    try {
      return (at.*Method)(arguments...);
    } catch (const std::bad_alloc&) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (const std::system_error&) {
      return CUDA_ERROR_OPERATING_SYSTEM; // a lock that cannot be had
    }
  });
}

} // namespace

void Emulation::bind(DriverTable& table) {
  table.explain = emulation::refusal_note;
#define STILLWAKE_BIND(call, method) bind_row<&State::method, CallId::call>(table.call, table.gate, *state_)
  STILLWAKE_BIND(cuInit, init);
  STILLWAKE_BIND(cuDriverGetVersion, driver_version);
  STILLWAKE_BIND(cuGetErrorName, error_name);
  STILLWAKE_BIND(cuDeviceGetCount, device_count);
  STILLWAKE_BIND(cuDeviceGet, device_get);
  STILLWAKE_BIND(cuDeviceGetName, device_name);
  STILLWAKE_BIND(cuDeviceGetAttribute, device_attribute);
  STILLWAKE_BIND(cuDeviceTotalMem, device_total_memory);
  STILLWAKE_BIND(cuDeviceCanAccessPeer, device_can_access_peer);
  STILLWAKE_BIND(cuDevicePrimaryCtxRetain, primary_context_retain);
  STILLWAKE_BIND(cuDevicePrimaryCtxRelease, primary_context_release);
  STILLWAKE_BIND(cuCtxPushCurrent, context_push);
  STILLWAKE_BIND(cuCtxPopCurrent, context_pop);
  STILLWAKE_BIND(cuCtxGetCurrent, context_get_current);
  STILLWAKE_BIND(cuCtxSynchronize, context_synchronize);
  STILLWAKE_BIND(cuCtxRecordEvent, context_record_event);
  STILLWAKE_BIND(cuMemGetInfo, memory_info);
  STILLWAKE_BIND(cuMemAlloc, memory_allocate);
  STILLWAKE_BIND(cuMemFree, memory_free);
  STILLWAKE_BIND(cuMemAddressReserve, address_reserve);
  STILLWAKE_BIND(cuMemAddressFree, address_free);
  STILLWAKE_BIND(cuMemCreate, memory_create);
  STILLWAKE_BIND(cuMemRelease, memory_release);
  STILLWAKE_BIND(cuMemMap, memory_map);
  STILLWAKE_BIND(cuMemUnmap, memory_unmap);
  STILLWAKE_BIND(cuMemSetAccess, memory_set_access);
  STILLWAKE_BIND(cuMemGetAllocationGranularity, memory_granularity);
  STILLWAKE_BIND(cuMemHostRegister, host_register);
  STILLWAKE_BIND(cuMemHostUnregister, host_unregister);
  STILLWAKE_BIND(cuMemcpyHtoDAsync, copy_to_device);
  STILLWAKE_BIND(cuMemcpyDtoHAsync, copy_to_host);
  STILLWAKE_BIND(cuMemcpyDtoDAsync, copy_on_device);
  STILLWAKE_BIND(cuMemsetD8Async, set_bytes);
  STILLWAKE_BIND(cuStreamCreate, stream_create);
  STILLWAKE_BIND(cuStreamDestroy, stream_destroy);
  STILLWAKE_BIND(cuStreamSynchronize, stream_synchronize);
  STILLWAKE_BIND(cuStreamQuery, stream_query);
  STILLWAKE_BIND(cuStreamWaitEvent, stream_wait_event);
  STILLWAKE_BIND(cuStreamIsCapturing, stream_is_capturing);
  STILLWAKE_BIND(cuStreamGetCtx, stream_get_context);
  STILLWAKE_BIND(cuStreamBeginCapture, begin_capture);
  STILLWAKE_BIND(cuThreadExchangeStreamCaptureMode, exchange_capture_mode);
  STILLWAKE_BIND(cuStreamEndCapture, end_capture);
  STILLWAKE_BIND(cuGraphInstantiateWithFlags, graph_instantiate);
  STILLWAKE_BIND(cuGraphLaunch, graph_launch);
  STILLWAKE_BIND(cuGraphDestroy, graph_destroy);
  STILLWAKE_BIND(cuGraphExecDestroy, graph_exec_destroy);
  STILLWAKE_BIND(cuEventCreate, event_create);
  STILLWAKE_BIND(cuEventDestroy, event_destroy);
  STILLWAKE_BIND(cuEventRecord, event_record);
  STILLWAKE_BIND(cuEventQuery, event_query);
  STILLWAKE_BIND(cuEventSynchronize, event_synchronize);
  STILLWAKE_BIND(cuEventElapsedTime, event_elapsed_time);
  STILLWAKE_BIND(cuLaunchHostFunc, launch_host_function);
  STILLWAKE_BIND(cuLaunchKernel, launch_kernel);
  STILLWAKE_BIND(cuModuleLoadData, module_load);
  STILLWAKE_BIND(cuModuleUnload, module_unload);
  STILLWAKE_BIND(cuModuleGetFunction, module_get_function);
#undef STILLWAKE_BIND
}

} // namespace stillwake
