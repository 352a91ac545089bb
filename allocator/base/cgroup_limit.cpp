// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/cgroup_limit.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace stillwake {
namespace {

/// The names of one version's files. Version 1 counts the groups below only in the total_ rows.
struct Layout {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* active_file;
  const char* inactive_file;
};
constexpr Layout kVersion1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                           "total_active_file", "total_inactive_file"};
constexpr Layout kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current", "active_file", "inactive_file"};

// Version 1 writes "no limit" as a number close to 2^63; no machine has 2^60 bytes.
constexpr std::uint64_t kAbsurd = 1ull << 60;

std::optional<Bytes> parse_count(const std::string& text) {
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt; // "max" among others
  }
  return Bytes(count);
}

std::optional<Bytes> read_count(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  return file >> word ? parse_count(word) : std::nullopt;
}

Bytes file_pages(const std::string& folder, const Layout& layout) {
  std::ifstream file(folder + "/memory.stat");
  Bytes sum;
  for (std::string key, value; file >> key >> value;) {
    if (key == layout.active_file || key == layout.inactive_file) {
      sum += parse_count(value).value_or(Bytes(0));
    }
  }
  return sum;
}

std::optional<CgroupLimit> read_folder(const std::string& folder, const Layout& layout) {
  const auto limit = read_count(folder + "/" + layout.limit);
  if (!limit || limit->count() >= kAbsurd) {
    return std::nullopt;
  }
  const Bytes usage = read_count(folder + "/" + layout.usage).value_or(Bytes(0));
  const Bytes reclaimable = file_pages(folder, layout);
  return CgroupLimit{*limit, reclaimable < usage ? usage - reclaimable : Bytes(0), folder};
}

void keep_tightest(std::optional<CgroupLimit>& tightest, std::optional<CgroupLimit> other) {
  if (other && (!tightest || other->room() < tightest->room())) {
    tightest = std::move(other);
  }
}

/// The group at `path` and all above it. In a container the path may be the host's, of which nothing is mounted here:
/// folders that are not there are passed over, and the mount's own folder is the container's group.
void read_group(std::optional<CgroupLimit>& tightest, const std::string& mount, std::string path,
                const Layout& layout) {
  if (path.rfind("/..", 0) == 0) {
    path.clear(); // outside of what this process may see
  }
  while (!path.empty() && path != "/") {
    keep_tightest(tightest, read_folder(mount + path, layout));
    path.erase(path.rfind('/'));
  }
  keep_tightest(tightest, read_folder(mount, layout));
}

bool lists_memory(const std::string& controllers) {
  return ("," + controllers + ",").find(",memory,") != std::string::npos;
}

} // namespace

Bytes CgroupLimit::kept_for_processes() const { return std::min(kMiB * 64, limit / 16); }

std::string CgroupLimit::described() const {
  return "the limit of the control group " + folder + ", of which " + readable(kept_for_processes()) +
         " are kept for the processes themselves";
}

std::optional<CgroupLimit> read_cgroup_limit(const std::string& root) {
  std::optional<CgroupLimit> tightest;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) { // "4:memory:/path" or "0::/path"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      read_group(tightest, root + kVersion2.mount, path, kVersion2);
    } else if (lists_memory(controllers)) {
      read_group(tightest, root + kVersion1.mount, path, kVersion1);
    }
  }
  return tightest;
}

} // namespace stillwake
