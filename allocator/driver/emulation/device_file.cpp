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

const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
  case S_IFLNK: return "a symbolic link";
  case S_IFDIR: return "a folder";
  case S_IFIFO: return "a fifo";
  case S_IFSOCK: return "a socket";
  default: return "a device node";
  }
}

// The error for what may not be in the place of a share's file, if it is that.
std::optional<tl::unexpected<Error>> out_of_place(const std::string& path, const struct stat& status) {
  if (!S_ISREG(status.st_mode)) {
    return wrong_share_file(path, std::string("is ") + kind_of(status.st_mode) + " and must be a regular file");
  }
  if (status.st_uid != ::geteuid()) {
    return failure(ErrorCode::kInvalidArgument, path + " belongs to " + user_name(status.st_uid) +
                                                    " and must belong to " + user_name(::geteuid()) +
                                                    "; give the share another name");
  }
  return std::nullopt;
}

tl::unexpected<Error> cannot_open(const std::string& path, int error) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (auto wrong = out_of_place(path, status)) {
      return std::move(*wrong);
    }
    if (error == EACCES || error == EPERM) {
      return wrong_share_file(path, "belongs to " + user_name(status.st_uid) +
                                        ", who may not read and write it: " + std::strerror(error));
    }
  }
  return no_memory("cannot open " + path + ": " + std::strerror(error));
}

bool can_be_device(const struct stat& status) {
  return status.st_size == 0 || status.st_size == static_cast<off_t>(kDeviceFileLength);
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

tl::unexpected<Error> wrong_share_file(const std::string& path, const std::string& what) {
  return failure(ErrorCode::kInvalidArgument,
                 path + " " + what + "; remove it once no process uses the share, or give the share another name");
}

Result<int> open_share_file(const std::string& path) {
  // What is no regular file must neither block us nor become our terminal.
  constexpr int kHow = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  int file = -1;
  do {
    file = ::open(path.c_str(), kHow);
    // Only where it is missing: systems refuse O_CREAT for a file of somebody else in a folder like this, whatever its
    // own rights say (fs.protected_regular).
    if (file < 0 && errno == ENOENT) {
      file = ::open(path.c_str(), kHow | O_CREAT | O_EXCL, 0600);
    }
  } while (file < 0 && errno == EEXIST); // somebody made it in between
  if (file < 0) {
    return cannot_open(path, errno);
  }
  struct stat status {};
  STILLWAKE_CHECK_EQ(::fstat(file, &status), 0);
  if (auto wrong = out_of_place(path, status)) {
    ::close(file);
    return std::move(*wrong);
  }
  return file;
}

Result<int> open_share_device(const std::string& path) {
  auto file = open_share_file(path);
  STILLWAKE_TRY(file);
  Cleanup close([&] { ::close(*file); });
  struct stat status {};
  STILLWAKE_CHECK_EQ(::fstat(*file, &status), 0);
  if (!can_be_device(status)) {
    return wrong_share_file(path, "has " + exact(Bytes(static_cast<std::uint64_t>(status.st_size))) +
                                      " and is not the memory of an emulated device");
  }
  STILLWAKE_TRY(lengthen_device_file(*file, path));
  close.cancel();
  return file;
}

void remove_share_device(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
      can_be_device(status)) {
    ::unlink(path.c_str());
  }
}

Result<void> lengthen_device_file(int file, const std::string& path) {
  if (const auto limit = over_file_limit(path, kDeviceFileLength)) {
    return no_memory(*limit);
  }
  if (::ftruncate(file, static_cast<off_t>(kDeviceFileLength)) != 0) {
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

std::optional<std::string> over_group_limit(const std::string& path, Bytes size, const std::string& system_root) {
  const auto group = read_cgroup_limit(system_root);
  if (!group || size <= group->free()) {
    return std::nullopt;
  }
  return path + " " + shortage(size, group->free(), group->limit, group->described());
}

} // namespace stillwake::emulation
