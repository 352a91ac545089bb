// SPDX-License-Identifier: Apache-2.0
// The DriverTable is the one table of driver calls: the entry points of libcuda, or the emulation. It is passed down by
// reference; nothing else calls CUDA. The gate (counters, faults), the clock and the log hook travel with it.
#pragma once

#include "allocator/base/base.h"
#include "allocator/driver/call_gate.h"
#include "allocator/driver/calls.h"

#include <type_traits>

namespace stillwake {

/// One callable row. `target` is the entry point of the real driver, or the emulation that answers.
template <class Signature> class Entry;
template <class... A> class Entry<CUresult(A...)> {
public:
  using Thunk = CUresult (*)(void* target, A...);

  void bind(CallGate& gate, CallId id, void* target, Thunk thunk) {
    gate_ = &gate;
    id_ = id;
    target_ = target;
    thunk_ = thunk;
  }
  /// Binds the entry point of a C function.
  void bind_function(CallGate& gate, CallId id, void* function) {
    bind(gate, id, function,
         [](void* target, A... arguments) { return reinterpret_cast<CUresult (*)(A...)>(target)(arguments...); });
  }
  /// Binds a member function of an object with the same arguments.
  template <auto Method, class Object> void bind_method(CallGate& gate, CallId id, Object& object) {
    bind(gate, id, &object,
         [](void* target, A... arguments) { return (static_cast<Object*>(target)->*Method)(arguments...); });
  }

  explicit operator bool() const { return thunk_ != nullptr; }
  CallId id() const { return id_; }

  CUresult operator()(A... arguments) const {
    if (const CUresult injected = gate_->enter(id_); injected != CUDA_SUCCESS) {
      return injected;
    }
    const CUresult result = thunk_(target_, arguments...);
    gate_->leave(id_, result);
    return result;
  }

private:
  CallGate* gate_ = nullptr;
  void* target_ = nullptr;
  Thunk thunk_ = nullptr;
  CallId id_ = CallId::kCount;
};

struct DriverTable {
#define STILLWAKE_ROW(call, version) Entry<std::remove_pointer_t<PFN_##call##_v##version>> call;
  STILLWAKE_DRIVER_CALLS(STILLWAKE_ROW, STILLWAKE_ROW)
#undef STILLWAKE_ROW

  CallGate gate;
  LogHook log;
  Clock* clock = nullptr;
  /// What the emulation can tell of this thread's last failure of a call beyond its number; null on the real driver.
  std::string (*explain)(CallId call) = nullptr;

  DriverTable() = default;
  DriverTable(const DriverTable&) = delete; // entries point at the gate: a table stays at one address
  DriverTable& operator=(const DriverTable&) = delete;
};

/// Fills the table from libcuda.so.1. Errors: kDriverMissing (no library), kDriverTooOld (names the missing call).
[[nodiscard]] Result<void> load_cuda_driver(DriverTable& table);

/// The Error::note of a failed call that this thread made: that it was injected, or what the emulation has to tell.
std::string note_of(const DriverTable& table, CallId call);

/// Makes the Error of a failed call: kLost for a dead context, kOutOfDeviceMemory for CUDA_ERROR_OUT_OF_MEMORY, else
/// kDriverCallFailed. `doing` says what was tried, with the figures.
Error driver_error(const DriverTable& table, CallId call, CUresult result, std::string doing);

/// Nothing on success, else driver_error. Callers that build figures into the sentence call driver_error themselves.
[[nodiscard]] Result<void> check_call(const DriverTable& table, CallId call, CUresult result, const char* doing);

} // namespace stillwake

/// Makes a call of the table: a Result<void>. `STILLWAKE_TRY(STILLWAKE_CALL(table, "unmapping", cuMemUnmap, address,
/// size))`.
#define STILLWAKE_CALL(table, doing, call, ...)                                                                        \
  ::stillwake::check_call((table), ::stillwake::CallId::call, (table).call(__VA_ARGS__), (doing))
