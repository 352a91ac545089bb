// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/guard.h"

#include "allocator/base/base.h"

#include <csetjmp>
#include <csignal>
#include <mutex>

namespace stillwake::emulation {
namespace {

// The way back of the guarded code that this thread runs; null outside.
thread_local sigjmp_buf* way_back = nullptr;

struct sigaction previous_segv;
struct sigaction previous_bus;

void handle_fault(int signal, siginfo_t* info, void* machine) {
  if (way_back != nullptr) {
    siglongjmp(*way_back, 1);
  }
  const struct sigaction& previous = signal == SIGBUS ? previous_bus : previous_segv;
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, info, machine);
  } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    // The instruction runs again without us, and ends the process as if we had never been there.
    ::signal(signal, SIG_DFL);
  } else {
    previous.sa_handler(signal);
  }
}

} // namespace

void install_fault_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = handle_fault;
    // NODEFER: the jump out of the handler leaves no signal blocked, so the mask need not be saved on every run.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    STILLWAKE_CHECK_EQ(sigaction(SIGSEGV, &action, &previous_segv), 0);
    STILLWAKE_CHECK_EQ(sigaction(SIGBUS, &action, &previous_bus), 0);
  });
}

bool run_guarded(void (*body)(void* context), void* context) {
  STILLWAKE_CHECK(way_back == nullptr);
  sigjmp_buf here;
  if (sigsetjmp(here, 0) != 0) {
    way_back = nullptr;
    return false;
  }
  way_back = &here;
  body(context);
  way_back = nullptr;
  return true;
}

} // namespace stillwake::emulation
