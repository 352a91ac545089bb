// SPDX-License-Identifier: Apache-2.0
#include "tests/shard/neighbour_process.h"

#include "allocator/driver/driver_layer.h"
#include "allocator/driver/emulation/emulation.h"
#include "shard/stillwake.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <thread>
#include <vector>

namespace stillwake {
namespace {

void say(const std::string& line) { std::cout << line << std::endl; }
void wait_to_be_let_go() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {}
}
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Takes so many bytes of the device, writes all of them, and holds them.
int take() {
  auto driver = Driver::open();
  if (!driver) {
    say(driver.error().describe());
    return 1;
  }
  ShardOptions options;
  options.name = "neighbour";
  options.policy = Policy::kDiscard;
  auto shard = Shard::create(*driver, options);
  const Bytes size(std::stoull(variable("STILLWAKE_TEST_BYTES")));
  auto block = shard ? shard->allocate(size) : Result<void*>(failure(shard.error()));
  if (!block) {
    say(block.error().describe());
    return 1;
  }
  {
    ContextScope scope(**driver->device(DeviceIndex(0)));
    const bool filled =
        driver->table().cuMemsetD8Async(DeviceAddress(*block).value(), 0xa5, size.size(), nullptr) == CUDA_SUCCESS &&
        driver->table().cuCtxSynchronize() == CUDA_SUCCESS;
    say(filled ? "taken" : "not usable");
  }
  wait_to_be_let_go();
  return 0;
}

struct Engine {
  std::optional<Driver> driver;
  std::optional<Shard> shard;
  std::optional<Ticket> ticket;
  std::optional<StagedWake> staged;
};

bool begin_to_wake(Engine& engine, bool only_stage) {
  auto driver = Driver::open();
  if (!driver) {
    return false;
  }
  engine.driver.emplace(std::move(*driver));
  ShardOptions options;
  options.name = "engine";
  auto shard = Shard::create(*engine.driver, options);
  if (!shard || !shard->allocate(kMiB * 2)) {
    return false;
  }
  engine.shard.emplace(std::move(*shard));
  {
    ContextScope scope(**engine.driver->device(DeviceIndex(0)));
    void* pointer = *engine.shard->allocate(kMiB * 48);
    (void)engine.driver->table().cuMemsetD8Async(DeviceAddress(pointer).value(), 7, (kMiB * 48).size(), nullptr);
  }
  if (!sleep({&*engine.shard})) {
    return false;
  }
  if (Emulation* emulation = engine.driver->emulation()) {
    emulation->set_bandwidth(kMiB * 64); // three quarters of a second: it ends in the middle
  }
  if (only_stage) {
    auto staged = stage_wake({&*engine.shard});
    return staged && (engine.staged.emplace(std::move(*staged)), true);
  }
  auto ticket = wake({&*engine.shard}, std::vector<Stream>{nullptr});
  return ticket && (engine.ticket.emplace(std::move(*ticket)),
                    engine.driver->emulation() == nullptr || !engine.ticket->is_done());
}

// Ends in the middle of a wake: with objects that are destroyed before, after or never while the process exits.
int leave(const std::string& how) {
  static Engine early; // destroyed last: everything that open() registers for the exit runs before it
  if (how == "leave-after" || how == "leave-staged") {
    say(begin_to_wake(early, how == "leave-staged") ? "waking" : "failed");
    std::exit(0);
  }
  if (how == "leave-leaked") {
    say(begin_to_wake(*new Engine, false) ? "waking" : "failed");
    std::exit(0);
  }
  static std::optional<Driver> opened = [] { // destroyed first
    auto driver = Driver::open();
    return driver ? std::optional<Driver>(std::move(*driver)) : std::nullopt;
  }();
  static Engine late;
  say(begin_to_wake(late, false) ? "waking" : "failed");
  std::exit(0);
}

// Exits while another thread is in a transition, for ever: it holds a staged half, or begins one after the other.
int exit_in_transition(const std::string& how) {
  ::alarm(30); // instead of hanging
  static std::optional<Driver> driver = [] {
    auto opened = Driver::open();
    return opened ? std::optional<Driver>(std::move(*opened)) : std::nullopt;
  }();
  static std::optional<Shard> shard = [] {
    ShardOptions options;
    options.name = "static";
    auto made = Shard::create(*driver, options);
    return made ? std::optional<Shard>(std::move(*made)) : std::nullopt;
  }();
  Shard* const used = &*shard;
  std::thread([used, how] {
    bool is_well = used->allocate(kMiB * 8).has_value();
    if (how == "exit-staged") {
      auto staged = stage_sleep({used});
      say(is_well && staged ? "in transition" : "failed");
      ::pause();
    }
    for (int turn = 0; is_well || turn == 0; ++turn) {
      is_well = is_well && sleep({used}) && wake({used});
      if (turn == 1) {
        say(is_well ? "in transition" : "failed");
      }
    }
    ::pause(); // the driver is out of reach
  }).detach();
  wait_to_be_let_go();
  std::exit(0);
}

// A /dev/shm of 16 MiB, seen by this process alone.
int fill_shared_memory() {
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=16m") != 0) {
    say("not permitted");
    return 0;
  }
  auto driver = Driver::open();
  if (!driver) {
    say(driver.error().describe());
    return 1;
  }
  ShardOptions options;
  options.name = "large";
  auto shard = Shard::create(*driver, options);
  if (!shard) {
    say(shard.error().describe());
    return 1;
  }
  auto small = shard->allocate(kMiB * 4);
  auto large = shard->allocate(kMiB * 32);
  if (!small || large) {
    say(small ? "32 MiB of 16 were handed out" : small.error().describe());
    return 1;
  }
  const std::string told = large.error().describe();
  const bool says_where = told.find("; /dev/shm/stillwake-") != std::string::npos &&
                          told.find(" are free in /dev/shm") != std::string::npos;
  const std::string first = to_string(large.error().code) + (says_where ? std::string(", says where") : ": " + told);
  auto slept = sleep({&*shard});
  auto woken = slept ? wake({&*shard}) : slept;
  say(first + (woken && shard->allocate(kMiB) ? ", and goes on" : ", and is broken: " + woken.error().describe()));
  return 0;
}

} // namespace

int play_neighbour() {
  const std::string role = variable("STILLWAKE_TEST_ROLE");
  if (role.empty()) {
    return -1;
  }
  if (role.rfind("exit-", 0) == 0) {
    return exit_in_transition(role);
  }
  return role == "take" ? take() : role == "full" ? fill_shared_memory() : leave(role);
}

NeighbourProcess::NeighbourProcess(const std::string& role, std::map<std::string, std::string> environment) {
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) {
    std::abort();
  }
  environment["STILLWAKE_TEST_ROLE"] = role;
  std::vector<std::string> texts;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (environment.count(text.substr(0, text.find('='))) == 0) {
      texts.push_back(text);
    }
  }
  for (const auto& [name, value] : environment) {
    texts.push_back(name);
    texts.back().append("=").append(value);
  }
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  char program[] = "shard_tests";
  char* arguments[] = {program, nullptr};
  if (::posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, arguments, pointers.data()) != 0) {
    std::abort();
  }
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(to[0]);
  ::close(from[1]);
  to_ = to[1];
  from_ = from[0];
}

NeighbourProcess::~NeighbourProcess() {
  wait();
  ::close(from_);
}

std::string NeighbourProcess::line() {
  std::string line;
  char byte = 0;
  while (::read(from_, &byte, 1) == 1 && byte != '\n') {
    line += byte;
  }
  return line;
}

int NeighbourProcess::wait() {
  if (process_ < 0) {
    return -1;
  }
  ::close(to_);
  int status = -1;
  while (::waitpid(process_, &status, 0) < 0) {}
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace stillwake
