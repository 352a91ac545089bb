// SPDX-License-Identifier: Apache-2.0
// SystemFiles is a folder that stands in for / with the files of /proc and /sys that a test writes.
#pragma once

#include "allocator/base/units.h"

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <stdlib.h>
#include <string>

namespace stillwake {

class SystemFiles {
public:
  SystemFiles() : root_((std::filesystem::temp_directory_path() / "stillwake-system-XXXXXX").string()) {
    if (mkdtemp(root_.data()) == nullptr) {
      throw std::runtime_error("no folder for a test");
    }
  }
  ~SystemFiles() { std::filesystem::remove_all(root_); }
  SystemFiles(const SystemFiles&) = delete;
  SystemFiles& operator=(const SystemFiles&) = delete;

  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  /// A control group (version 2) that the process runs in.
  void write_group(Bytes limit, Bytes in_use = Bytes(0)) {
    write("/proc/self/cgroup", "0::/job\n");
    write("/sys/fs/cgroup/job/memory.max", std::to_string(limit.count()));
    write("/sys/fs/cgroup/job/memory.current", std::to_string(in_use.count()));
  }
  std::string group_folder() const { return root_ + "/sys/fs/cgroup/job"; }

private:
  std::string root_;
};

} // namespace stillwake
