// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/emulation/other_process.h"

#include "tests/driver/emulation/emulated.h"

#include <csignal>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace stillwake {
namespace {

const char* name_of(Emulated& emulated, CUresult result) {
  const char* name = "?";
  emulated.table().cuGetErrorName(result, &name);
  return name;
}

void say(const std::string& line) {
  const std::string text = line + "\n";
  EXPECT_EQ(::write(STDOUT_FILENO, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

void wait_to_be_let_go() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {}
}

int take(const std::string& share) {
  Emulated emulated({.devices = 1, .memory = kMiB * 64, .share = share});
  CUmemGenericAllocationHandle handle = 0;
  say(name_of(emulated, emulated.create(kMiB * 40, handle)));
  wait_to_be_let_go();
  return 0;
}

int exit_open(const std::string& share) {
  static Emulated emulated({.devices = 1, .memory = kMiB * 64, .share = share});
  CUmemGenericAllocationHandle handle = 0;
  say(name_of(emulated, emulated.create(kMiB * 40, handle)));
  return 0;
}

/// Makes a /dev/shm that this process alone sees; says so where it may not.
bool mount_own_shared_memory(const char* size) {
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", "/dev/shm", "tmpfs", 0, size) != 0) {
    say("not permitted");
    return false;
  }
  return true;
}

int full(const std::string& share) {
  if (!mount_own_shared_memory("size=16m")) {
    return 0;
  }
  Emulated emulated({.devices = 1, .memory = kGiB, .share = share});
  CUmemGenericAllocationHandle handle = 0;
  const CUresult filled = emulated.create(kMiB * 32, handle);
  std::string notes = "\n" + emulated.table().explain(CallId::cuMemCreate);
  emulated->set_pattern(false);
  const CUresult reserved = emulated.create(kMiB * 32, handle);
  notes += "\n" + emulated.table().explain(CallId::cuMemCreate);
  const CUresult small = emulated.create(kMiB * 8, handle);
  notes += "\n" + emulated.table().explain(CallId::cuMemCreate);
  const CUdeviceptr address = emulated.reserve(kMiB * 8);
  EXPECT_EQ(emulated.table().cuMemMap(address, (kMiB * 8).size(), 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(emulated.set_access(address, kMiB * 8), CUDA_SUCCESS);
  std::fill_n(reinterpret_cast<char*>(address), (kMiB * 8).size(), static_cast<char>(1));
  say(std::string(name_of(emulated, filled)) + " " + name_of(emulated, reserved) + " " + name_of(emulated, small) +
      notes);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

std::string describe(const Result<std::unique_ptr<Emulation>>& made) { return made ? "made" : made.error().describe(); }

int join_without_room(const std::string& share) {
  if (!mount_own_shared_memory("size=1m")) {
    return 0;
  }
  const std::string answer = describe(Emulation::create({.devices = 1, .memory = kMiB * 64, .share = share}));
  const std::filesystem::directory_iterator left("/dev/shm");
  say(answer + "\n" + std::to_string(std::distance(begin(left), end(left))) + " files");
  return ::testing::Test::HasFailure() ? 1 : 0;
}

int join_as_nobody(const std::string& share) {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0) {
    EXPECT_EQ(::setresuid(kNobody, kNobody, kNobody), 0); // root may open everything
  }
  say(describe(Emulation::create({.devices = 1, .memory = kMiB * 64, .share = share})));
  return ::testing::Test::HasFailure() ? 1 : 0;
}

void limit_file_size(Bytes size) {
  const rlimit limit{size.size(), RLIM_INFINITY};
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
}

int limit(const std::string& share) {
  limit_file_size(kMiB);
  say(describe(Emulation::create({.devices = 1, .memory = kMiB * 64, .share = share})));
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// The limit comes when the emulation runs already.
int limit_later(const std::string& share) {
  Emulated emulated({.devices = 1, .memory = kMiB * 64, .share = share});
  limit_file_size(kMiB * 16);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult below = emulated.create(kMiB * 8, handle);
  const CUresult filled = emulated.create(kMiB * 16, handle);
  std::string note = emulated.table().explain(CallId::cuMemCreate);
  emulated->set_pattern(share.empty()); // a private device does not reserve what it does not fill
  const CUresult reserved = emulated.create(kMiB * 16, handle);
  say(std::string(name_of(emulated, below)) + " " + name_of(emulated, filled) + " " + name_of(emulated, reserved) +
      " " + note);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

int play(const std::string& role, const std::string& share) {
  if (role == "take-40") {
    return take(share);
  }
  if (role == "exit-open") {
    return exit_open(share);
  }
  if (role == "join-without-room") {
    return join_without_room(share);
  }
  if (role == "join-as-nobody") {
    return join_as_nobody(share);
  }
  if (role.rfind("limit", 0) == 0) {
    const std::string where = role.find("alone") != std::string::npos ? "" : share;
    return role.find("later") != std::string::npos ? limit_later(where) : limit(where);
  }
  return full(share);
}

} // namespace

int play_role() {
  const char* role = std::getenv("STILLWAKE_TEST_ROLE");
  if (role == nullptr) {
    return -1;
  }
  return play(role, std::getenv("STILLWAKE_TEST_SHARE"));
}

OtherProcess::OtherProcess(const std::string& role, const std::string& share) {
  int to[2], from[2];
  EXPECT_EQ(::pipe2(to, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(from, O_CLOEXEC), 0);
  ::setenv("STILLWAKE_TEST_ROLE", role.c_str(), 1);
  ::setenv("STILLWAKE_TEST_SHARE", share.c_str(), 1);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  char program[] = "emulation_tests";
  char* arguments[] = {program, nullptr};
  EXPECT_EQ(::posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, arguments, environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  ::unsetenv("STILLWAKE_TEST_ROLE");
  ::close(to[0]);
  ::close(from[1]);
  to_ = to[1];
  from_ = from[0];
}

OtherProcess::~OtherProcess() {
  wait();
  ::close(from_);
}

std::string OtherProcess::line() {
  std::string line;
  char byte = 0;
  while (::read(from_, &byte, 1) == 1 && byte != '\n') {
    line += byte;
  }
  return line;
}

void OtherProcess::kill() {
  ::kill(process_, SIGKILL);
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOWAIT), 0);
}

int OtherProcess::wait() {
  if (process_ < 0) {
    return -1;
  }
  ::close(to_);
  int status = -1;
  EXPECT_EQ(::waitpid(process_, &status, 0), process_);
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace stillwake
