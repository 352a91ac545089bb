// SPDX-License-Identifier: Apache-2.0
// Emulation::State is the emulated driver: a method for every row of the driver table, with the same arguments.
// Methods live where their things live: state.cpp (devices, contexts), memory_calls.cpp, stream_calls.cpp,
// event_calls.cpp, capture_calls.cpp, work_calls.cpp. bindings.cpp calls them, after the rules that hold for all.
//
// Locks: mutex_ guards contexts, streams, events, captures, graphs and modules, and is never held while work is waited
// for. AddressSpace, HostRegistrations and Ledger have locks of their own, taken for the length of one of their calls.
#pragma once

#include "allocator/driver/emulation/address_space.h"
#include "allocator/driver/emulation/bus.h"
#include "allocator/driver/emulation/capture.h"
#include "allocator/driver/emulation/context.h"
#include "allocator/driver/emulation/device_memory.h"
#include "allocator/driver/emulation/emulation.h"
#include "allocator/driver/emulation/event.h"
#include "allocator/driver/emulation/host_registration.h"
#include "allocator/driver/emulation/kernels.h"

#include <unistd.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace stillwake {

namespace emulation {
class SharedLedger;
}

class Emulation::State {
  using Context = emulation::Context;
  using Stream = emulation::Stream;
  using Event = emulation::Event;
  using Capture = emulation::Capture;
  using Operation = emulation::Operation;
  using Lock = std::unique_lock<std::mutex>;

public:
  /// `shared` is the memories' ledger when other processes use it too, else null.
  State(std::vector<std::shared_ptr<emulation::DeviceMemory>> memories,
        std::shared_ptr<emulation::SharedLedger> shared);
  ~State();

  // What Emulation's own interface reaches.

  void register_kernel(const char* name, KernelTwin twin, std::vector<std::size_t> parameter_sizes);
  emulation::DeviceMemory& memory(DeviceIndex device) const;
  const emulation::AddressSpace& addresses() const { return addresses_; }
  const emulation::HostRegistrations& registrations() const { return registrations_; }
  void set_pattern(bool on);
  /// Leaves the share without touching anything else; does nothing in a child made by fork.
  void leave_share();
  std::uint64_t live_streams() const;
  std::uint64_t live_events() const;
  std::atomic<Duration::rep> delay{0};
  std::atomic<std::uint64_t> bandwidth{0};

  bool initialised() const { return initialised_; }

  // state.cpp
  CUresult init(unsigned flags);
  CUresult driver_version(int* version);
  CUresult error_name(CUresult error, const char** name);
  CUresult device_count(int* count);
  CUresult device_get(CUdevice* device, int ordinal);
  CUresult device_name(char* name, int length, CUdevice device);
  CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice device);
  CUresult device_total_memory(std::size_t* bytes, CUdevice device);
  CUresult device_can_access_peer(int* can, CUdevice device, CUdevice peer);
  CUresult primary_context_retain(CUcontext* context, CUdevice device);
  CUresult primary_context_release(CUdevice device);
  CUresult context_push(CUcontext context);
  CUresult context_pop(CUcontext* context);
  CUresult context_get_current(CUcontext* context);
  CUresult context_synchronize();
  CUresult context_record_event(CUcontext context, CUevent event);

  // memory_calls.cpp
  CUresult memory_info(std::size_t* free, std::size_t* total);
  CUresult memory_allocate(CUdeviceptr* address, std::size_t size);
  CUresult memory_free(CUdeviceptr address);
  CUresult address_reserve(CUdeviceptr* address, std::size_t size, std::size_t alignment, CUdeviceptr wish,
                           unsigned long long flags);
  CUresult address_free(CUdeviceptr address, std::size_t size);
  CUresult memory_create(CUmemGenericAllocationHandle* handle, std::size_t size, const CUmemAllocationProp* properties,
                         unsigned long long flags);
  CUresult memory_release(CUmemGenericAllocationHandle handle);
  CUresult memory_map(CUdeviceptr address, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags);
  CUresult memory_unmap(CUdeviceptr address, std::size_t size);
  CUresult memory_set_access(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access, std::size_t count);
  CUresult memory_granularity(std::size_t* granularity, const CUmemAllocationProp* properties,
                              CUmemAllocationGranularity_flags option);
  CUresult host_register(void* pointer, std::size_t size, unsigned flags);
  CUresult host_unregister(void* pointer);

  // work_calls.cpp
  CUresult copy_to_device(CUdeviceptr to, const void* from, std::size_t size, CUstream stream);
  CUresult copy_to_host(void* to, CUdeviceptr from, std::size_t size, CUstream stream);
  CUresult copy_on_device(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream);
  CUresult set_bytes(CUdeviceptr to, unsigned char value, std::size_t size, CUstream stream);
  CUresult launch_host_function(CUstream stream, CUhostFn function, void* argument);
  CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,
                         void** extra);
  CUresult module_load(CUmodule* module, const void* image);
  CUresult module_unload(CUmodule module);
  CUresult module_get_function(CUfunction* function, CUmodule module, const char* name);

  // stream_calls.cpp
  CUresult stream_create(CUstream* stream, unsigned flags);
  CUresult stream_destroy(CUstream stream);
  CUresult stream_synchronize(CUstream stream);
  CUresult stream_query(CUstream stream);
  CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags);
  CUresult stream_is_capturing(CUstream stream, CUstreamCaptureStatus* status);
  CUresult stream_get_context(CUstream stream, CUcontext* context);

  // event_calls.cpp
  CUresult event_create(CUevent* event, unsigned flags);
  CUresult event_destroy(CUevent event);
  CUresult event_record(CUevent event, CUstream stream);
  CUresult event_query(CUevent event);
  CUresult event_synchronize(CUevent event);
  CUresult event_elapsed_time(float* milliseconds, CUevent start, CUevent end);

  // capture_calls.cpp
  CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode);
  CUresult exchange_capture_mode(CUstreamCaptureMode* mode);
  CUresult end_capture(CUstream stream, CUgraph* graph);
  CUresult graph_instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long flags);
  CUresult graph_launch(CUgraphExec exec, CUstream stream);
  CUresult graph_destroy(CUgraph graph);
  CUresult graph_exec_destroy(CUgraphExec exec);

private:
  // The current context, when it is alive.
  CUresult enter(Context*& context) const;
  Context* find_context(CUcontext handle);
  bool device_exists(CUdevice device) const { return device >= 0 && device < static_cast<int>(memories_.size()); }
  static CUresult wait_for(const std::vector<emulation::CompletionPointer>& work, const Context& context);

  // With mutex_ held.

  /// The stream behind a handle, and its context alive.
  CUresult find_stream(CUstream handle, Context& current, emulation::StreamPointer& stream);
  CUresult find_event(CUevent handle, std::shared_ptr<Event>& event);
  void retire_idle(Context& context);
  /// Refuses the legacy stream while a blocking stream of the context captures.
  CUresult refuse_implicit(const Stream& stream, bool invalidate);
  CUresult refuse_unsafe();
  CUresult refuse_capturing_context(const Context& context);
  CUresult refuse_captured(const Event& event);
  /// Makes the stream wait, in the capture, for a captured event: it joins where it does not capture yet.
  CUresult join_capture(const emulation::StreamPointer& stream, const Event& event);
  void end(Capture& capture);
  /// Everything that must be done before work that is queued on the stream now.
  std::vector<emulation::CompletionPointer> before(const Stream& stream) const;
  /// Queues the operation, or notes it down when the stream captures; `done` is null then.
  CUresult submit(Stream& stream, Operation operation, std::vector<emulation::CompletionPointer> after,
                  emulation::CompletionPointer* done);

  // Without it.

  /// Takes mutex_, finds the stream, has `prepare` check the arguments and make the operation, and submits that.
  /// `synchronous` waits for it, unless it was captured.
  template <class Prepare> CUresult submit_on(CUstream handle, bool synchronous, Prepare&& prepare);
  bool usable(DeviceIndex device, CUdeviceptr address, std::size_t size, emulation::Use use) const;
  /// Waits for the delay of the knob first.
  Operation timed(Operation operation);

  std::vector<std::shared_ptr<emulation::DeviceMemory>> memories_;
  const std::shared_ptr<emulation::SharedLedger> shared_;
  const pid_t process_ = ::getpid();
  std::vector<std::unique_ptr<emulation::Bus>> to_device_;
  std::vector<std::unique_ptr<emulation::Bus>> to_host_;
  emulation::AddressSpace addresses_;
  emulation::HostRegistrations registrations_;
  emulation::CurrentContexts current_;
  std::atomic<bool> initialised_{false};

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Context>> contexts_; // one a device; neither it nor they ever move
  std::unordered_map<CUevent, std::shared_ptr<Event>> events_;
  std::vector<emulation::CapturePointer> captures_; // those that have not ended
  std::unordered_map<CUgraph, emulation::Graph> graphs_;
  std::unordered_map<CUgraphExec, std::shared_ptr<emulation::GraphExec>> graph_execs_;
  std::map<std::string, emulation::Kernel> kernels_;
  std::unordered_map<CUmodule, std::vector<CUfunction>> modules_;
  std::unordered_map<CUfunction, emulation::Kernel> functions_;

  /// Handles are numbers that are never given out twice: a destroyed one is found out.
  template <class Handle> Handle new_handle() { return reinterpret_cast<Handle>(next_handle_ += 16); }
  std::uintptr_t next_handle_ = 0x57494C4C0000; // above the small numbers that CU_STREAM_LEGACY and its like are
};

} // namespace stillwake
