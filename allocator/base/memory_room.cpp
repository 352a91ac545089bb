// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/memory_room.h"

#include "allocator/base/cgroup_limit.h"

#include <fstream>
#include <limits>

namespace stillwake {
namespace {

// MemAvailable and SwapFree; unset without the first, which every kernel since 3.14 has.
std::optional<Bytes> system_room(const std::string& root) {
  std::ifstream info(root + "/proc/meminfo");
  std::optional<Bytes> available;
  Bytes swap;
  std::string key;
  for (std::uint64_t kibibytes = 0; info >> key >> kibibytes;) { // "MemAvailable:   23764480 kB"
    if (key == "MemAvailable:") {
      available = Bytes(kibibytes * 1024);
    } else if (key == "SwapFree:") {
      swap = Bytes(kibibytes * 1024);
    }
    info.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return available ? std::optional(*available + swap) : std::nullopt;
}

} // namespace

std::optional<MemoryRoom> memory_room(const std::string& root) {
  const auto system = system_room(root);
  const auto cgroup = read_cgroup_limit(root);
  if (cgroup && (!system || cgroup->room() < *system)) {
    return MemoryRoom{cgroup->room(), "the control group " + cgroup->folder};
  }
  return system ? std::optional(MemoryRoom{*system, "the system"}) : std::nullopt;
}

} // namespace stillwake
