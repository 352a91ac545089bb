// SPDX-License-Identifier: Apache-2.0
// Guarded code may touch memory that is not there: the fault ends the code and is told as a value, as a device does it.
// A signal handler needs the process: this is the emulation's one global, installed once and never taken out. A fault
// of a thread that is not in guarded code goes to the handler that was there before.
#pragma once

namespace stillwake::emulation {

/// Installs the handler for SIGSEGV and SIGBUS. Any thread, any number of times.
void install_fault_handler();

/// Runs body(context) on this thread. False when it faulted: then it was left in the middle, its destructors not run.
/// Does not nest.
bool run_guarded(void (*body)(void* context), void* context);

template <class Body> bool guarded(Body&& body) {
  return run_guarded([](void* context) { (*static_cast<Body*>(context))(); }, &body);
}

} // namespace stillwake::emulation
