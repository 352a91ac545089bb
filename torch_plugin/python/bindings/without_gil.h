// SPDX-License-Identifier: Apache-2.0
// WithoutGil gives the interpreter's lock up for a scope. Unlike pybind11's own class it bears the end of the
// interpreter: a daemon thread that asks for the lock again then is ended by Python 3.13 and older through an unwinding
// that no destructor lets pass, so the whole process aborted. Here it waits for the process's end, as in Python 3.14.
#pragma once

#include <pybind11/pybind11.h>

#include <unistd.h>

namespace stillwake::pytorch {

class WithoutGil {
public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) { // the unwinding of pthread_exit: to leave this block would abort
      for (;;) {
        ::pause();
      }
    }
  }

private:
  PyThreadState* thread_;
};

using NoGil = pybind11::call_guard<WithoutGil>;

} // namespace stillwake::pytorch
