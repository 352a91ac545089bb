// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/device_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>

namespace stillwake::emulation {
namespace {

tl::unexpected<Error> no_memory(std::string sentence) {
  return failure(ErrorCode::kOutOfHostMemory, std::move(sentence));
}

std::string user_name(uid_t user) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 1024> text{};
  ::getpwuid_r(user, &entry, text.data(), text.size(), &found);
  const std::string number = "user " + std::to_string(user);
  return found != nullptr ? number + " (" + found->pw_name + ")" : number;
}

} // namespace

Result<int> private_device_file() {
  const std::string path = "the memory file of an emulated device";
  const int file = ::memfd_create("stillwake-device", MFD_CLOEXEC);
  if (file < 0) {
    return no_memory("cannot make " + path + ": " + std::strerror(errno));
  }
  if (auto lengthened = lengthen_device_file(file, path); !lengthened) {
    ::close(file);
    return failure(std::move(lengthened).error());
  }
  return file;
}

Result<int> open_share_file(const std::string& path) {
  int file = -1;
  do {
    file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    // Only where it is missing: systems refuse O_CREAT for a file of somebody else in a folder like this, whatever its
    // own rights say (fs.protected_regular).
    if (file < 0 && errno == ENOENT) {
      file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
  } while (file < 0 && errno == EEXIST); // somebody made it in between
  if (file >= 0) {
    return file;
  }
  const int error = errno;
  struct stat status {};
  if ((error == EACCES || error == EPERM) && ::stat(path.c_str(), &status) == 0) {
    return failure(ErrorCode::kInvalidArgument,
                   path + " belongs to " + user_name(status.st_uid) + ", and " + user_name(::geteuid()) +
                       " may not open it: " + std::strerror(error) + "; give the share another name");
  }
  return no_memory("cannot open " + path + ": " + std::strerror(error));
}

Result<void> lengthen_device_file(int file, const std::string& path) {
  constexpr off_t kLength = off_t{1} << 60;
  if (const auto limit = over_file_limit(path, kLength)) {
    return no_memory(*limit);
  }
  if (::ftruncate(file, kLength) != 0) {
    return no_memory("cannot set the length of " + path + ", a sparse file: " + std::strerror(errno));
  }
  return {};
}

int allocate_space(int file, std::uint64_t offset, Bytes size) {
  int error = EINTR;
  while (error == EINTR) {
    error = ::posix_fallocate(file, static_cast<off_t>(offset), static_cast<off_t>(size.count()));
  }
  return error;
}

std::string no_room(int file, const std::string& path, Bytes needed, int error) {
  std::string text = path + " needs " + exact(needed) + " more";
  struct statvfs system {};
  if (::fstatvfs(file, &system) == 0 && system.f_blocks != 0) { // 0: a file system without a size of its own
    const std::string folder = path.substr(0, path.rfind('/'));
    text += ", " + exact(Bytes(system.f_bavail * system.f_frsize)) + " are free in " + folder;
  }
  return text + ": " + std::strerror(error);
}

std::optional<std::string> over_file_limit(const std::string& path, std::uint64_t end) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || end <= limit.rlim_cur) {
    return std::nullopt;
  }
  return path + " must be able to reach a length of " + exact(Bytes(end)) +
         " (sparse), and the limit RLIMIT_FSIZE is " + exact(Bytes(limit.rlim_cur)) +
         "; lift it with `ulimit -f unlimited`";
}

} // namespace stillwake::emulation
