// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/start_thread.h"

#include "allocator/base/sizes.h"

#include <atomic>
#include <sys/resource.h>

namespace stillwake {
namespace {

std::atomic<ThreadRefusal> asked{nullptr};

std::string threads_allowed() {
  rlimit limit{};
  const bool any = getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
  return any ? "any number of" : "at most " + std::to_string(limit.rlim_cur);
}

std::string addresses_allowed() {
  rlimit limit{};
  const bool any = getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
  return any ? "any number of bytes" : exact(Bytes(limit.rlim_cur));
}

} // namespace

void refuse_threads(ThreadRefusal refusal) { asked = refusal; }

namespace detail {

void ask_to_start(const std::string& what) {
  const ThreadRefusal refusal = asked;
  if (const int error = refusal != nullptr ? refusal(what) : 0; error != 0) {
    throw std::system_error(error, std::generic_category());
  }
}

Error no_thread(const std::string& what, const std::string& reason) {
  return Error{ErrorCode::kOutOfHostMemory, 0, "",
               "no thread could be started for " + what + ": " + reason + "; RLIMIT_NPROC allows this user " +
                   threads_allowed() + " threads, RLIMIT_AS allows this process " + addresses_allowed() +
                   " of addresses, and a cgroup may allow fewer threads (pids.max)"};
}

} // namespace detail
} // namespace stillwake
