// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/process_identity.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

namespace stillwake::emulation {
namespace {

struct Status {
  char state;
  std::uint64_t started;
};

// Nothing for a process that is not there.
std::optional<Status> status_of(pid_t number) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(number) + "/stat").c_str(), "re");
  if (file == nullptr) {
    return std::nullopt;
  }
  char line[1024];
  const std::size_t length = std::fread(line, 1, sizeof line - 1, file);
  std::fclose(file);
  line[length] = '\0';
  // The name in parentheses may hold anything, a parenthesis too; what follows the last one is plain (proc(5)).
  const char* rest = std::strrchr(line, ')');
  Status status{};
  const bool read =
      rest != nullptr &&
      std::sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64,
                  &status.state, &status.started) == 2;
  return read ? std::optional(status) : std::nullopt;
}

} // namespace

ProcessIdentity ProcessIdentity::own() {
  const auto status = status_of(::getpid());
  return {::getpid(), status ? status->started : 0};
}

bool ProcessIdentity::alive() const {
  const auto status = status_of(number);
  return status && status->started == started && status->state != 'Z' && status->state != 'X';
}

} // namespace stillwake::emulation
