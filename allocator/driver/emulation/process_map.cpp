// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/process_map.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <optional>

namespace stillwake::emulation {
namespace {

// PROCMAP_QUERY of <linux/fs.h>, which has it since Linux 6.11: one mapping a call, where reading /proc/self/maps
// writes a line for each of what can be ten thousand.
struct ProcmapQuery {
  std::uint64_t size, query_flags, query_addr;
  std::uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
  std::uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
  std::uint64_t vma_name_addr, build_id_addr;
};
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);
constexpr std::uint64_t kReadable = 1, kWritable = 2;

// Nothing when the system does not know the query.
std::optional<bool> ask(int maps, std::uint64_t first, std::uint64_t end) {
  for (std::uint64_t at = first; at < end;) {
    ProcmapQuery query{};
    query.size = sizeof query;
    query.query_addr = at;
    if (::ioctl(maps, kProcmapQuery, &query) != 0) {
      return errno == ENOENT ? std::optional(false) : std::nullopt;
    }
    if ((query.vma_flags & (kReadable | kWritable)) != (kReadable | kWritable)) {
      return false;
    }
    at = query.vma_end;
  }
  return true;
}

bool read_through(int maps, std::uint64_t first, std::uint64_t end) {
  std::FILE* lines = ::fdopen(maps, "re");
  std::uint64_t at = first;
  char line[512];
  while (at < end && std::fgets(line, sizeof line, lines) != nullptr) {
    std::uint64_t from = 0, to = 0;
    char access[5] = {};
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &from, &to, access) == 3 && from <= at && at < to) {
      if (access[0] != 'r' || access[1] != 'w') {
        break;
      }
      at = to;
    }
  }
  std::fclose(lines);
  return at >= end;
}

} // namespace

bool is_readable_and_writable(std::uint64_t first, std::uint64_t size) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) {
    return true; // no /proc: the copies will tell
  }
  if (const std::optional<bool> answer = ask(maps, first, first + size)) {
    ::close(maps);
    return *answer;
  }
  return read_through(maps, first, first + size);
}

} // namespace stillwake::emulation
