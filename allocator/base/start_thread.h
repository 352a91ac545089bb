// SPDX-License-Identifier: Apache-2.0
// The one place where a thread is made. A system that gives no thread is an expected failure and comes as a value:
// nobody who starts one has anything thrown through what he holds.
#pragma once

#include "allocator/base/result.h"

#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace stillwake {

/// Told what a thread is for, before it is started: 0 lets it start, an errno refuses it as the system would. Any
/// thread.
using ThreadRefusal = int (*)(const std::string& what);
/// For tests: asked before every thread from now on; null ends that.
void refuse_threads(ThreadRefusal refusal);

namespace detail {

/// Throws what std::thread throws when a test refuses it.
void ask_to_start(const std::string& what);
Error no_thread(const std::string& what, const std::string& reason);

} // namespace detail

/// Runs `body` on a new thread. `what` it is for completes the sentence "no thread could be started for". Errors:
/// kOutOfHostMemory, with the system's reason and the limits of the process; then nothing has happened.
template <class Body> [[nodiscard]] Result<std::thread> start_thread(const std::string& what, Body&& body) {
  try {
    detail::ask_to_start(what);
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& refused) {
    return failure(detail::no_thread(what, refused.code().message()));
  } catch (const std::bad_alloc&) {
    return failure(detail::no_thread(what, "no memory for what it begins with"));
  }
}

} // namespace stillwake
