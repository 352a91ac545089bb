// SPDX-License-Identifier: Apache-2.0
// CgroupFiles is a folder that stands in for / with the files of control groups that a test writes.
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <stdlib.h>
#include <string>

namespace stillwake {

class CgroupFiles {
public:
  CgroupFiles() : root_((std::filesystem::temp_directory_path() / "stillwake-cgroup-XXXXXX").string()) {
    if (mkdtemp(root_.data()) == nullptr) {
      throw std::runtime_error("no folder for a test");
    }
  }
  ~CgroupFiles() { std::filesystem::remove_all(root_); }
  CgroupFiles(const CgroupFiles&) = delete;
  CgroupFiles& operator=(const CgroupFiles&) = delete;

  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

private:
  std::string root_;
};

} // namespace stillwake
