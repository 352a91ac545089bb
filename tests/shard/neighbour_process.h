// SPDX-License-Identifier: Apache-2.0
// A NeighbourProcess is this test program once more, in a role of its own, on the driver that the environment names: it
// says one line and waits until it is let go.
#pragma once

#include <map>
#include <string>
#include <sys/types.h>

namespace stillwake {

class NeighbourProcess {
public:
  /// `environment` is what it gets on top of ours.
  NeighbourProcess(const std::string& role, std::map<std::string, std::string> environment);
  /// Lets it go and waits for it.
  ~NeighbourProcess();
  NeighbourProcess(const NeighbourProcess&) = delete;
  NeighbourProcess& operator=(const NeighbourProcess&) = delete;

  /// Its next line.
  std::string line();
  /// Lets it go; its exit status, or -1 for a signal.
  int wait();

private:
  pid_t process_ = -1;
  int to_ = -1;
  int from_ = -1;
};

/// Plays the role that the environment names, if any; the program's exit status then, else -1.
int play_neighbour();

} // namespace stillwake
