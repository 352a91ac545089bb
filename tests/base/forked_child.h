// SPDX-License-Identifier: Apache-2.0
// Runs a part of a test in a child made by fork.
#pragma once

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

namespace stillwake {

#ifdef __SANITIZE_THREAD__
/// The thread sanitizer has locks of its own, which a fork among threads leaves held.
constexpr bool kCanFork = false;
#else
constexpr bool kCanFork = true;
#endif

/// Whether `part` answers true in a child. A child that waits for ever, for a lock of a thread that it does not have,
/// is ended after ten seconds.
template <class Part>::testing::AssertionResult holds_in_child(Part&& part) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(part() ? 0 : 1);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    return ::testing::AssertionFailure() << "no child could be made, or it is not ours";
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return ::testing::AssertionSuccess();
  }
  if (WIFSIGNALED(status)) {
    return ::testing::AssertionFailure() << "signal " << WTERMSIG(status) << " ended the child";
  }
  return ::testing::AssertionFailure() << "the child answered false, status " << status;
}

} // namespace stillwake
