// SPDX-License-Identifier: Apache-2.0
// An OtherProcess is this test program once more, in a role of its own: it says one line and waits until it is let go.
#pragma once

#include <string>
#include <sys/types.h>

namespace stillwake {

class OtherProcess {
public:
  OtherProcess(const std::string& role, const std::string& share);
  /// Lets it go and waits for it.
  ~OtherProcess();
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  /// Its next line.
  std::string line();
  /// Kills it, and returns once it is dead; it stays to be waited for.
  void kill();
  /// Lets it go; its exit status, or -1 for a signal.
  int wait();

private:
  pid_t process_ = -1;
  int to_ = -1;
  int from_ = -1;
};

/// Plays the role that the environment names, if any; the program's exit status then, else -1.
int play_role();

} // namespace stillwake
