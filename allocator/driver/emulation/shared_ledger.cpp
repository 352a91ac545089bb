// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/shared_ledger.h"

#include "allocator/driver/emulation/device_file.h"
#include "allocator/driver/emulation/ledger_content.h"
#include "allocator/driver/emulation/ledger_table.h"
#include "allocator/driver/emulation/refusal_note.h"
#include "allocator/driver/emulation/share_sweep.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace stillwake::emulation {
namespace {

constexpr std::size_t kMostMembers = LedgerTable::kMostMembers;
constexpr std::size_t kMostClaims = LedgerTable::kMostClaims;

tl::unexpected<Error> system_failure(const std::string& path, const char* what) {
  return failure(ErrorCode::kOutOfHostMemory, std::string(what) + " " + path + ": " + std::strerror(errno));
}

tl::unexpected<Error> damaged(const std::string& path, const std::string& fault) {
  return wrong_share_file(path, "is damaged (" + fault + ")");
}

// Who joins waits no longer for the table's lock: a damaged one may say for ever that somebody has it.
constexpr time_t kLongestWaitSeconds = 5;

int lock_in_time(pthread_mutex_t& mutex) {
  timespec until{};
  ::clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += kLongestWaitSeconds;
  return ::pthread_mutex_timedlock(&mutex, &until);
}

} // namespace

// False when the lock cannot be had since the file was damaged: the table is not to be touched then.
// Robust: when a holder dies the next one hears of it, and sets the counts right.
class SharedLedger::Held {
public:
  explicit Held(LedgerTable& table) : Held(table, ::pthread_mutex_lock(&table.mutex)) {}
  /// With what locking answered.
  Held(LedgerTable& table, int result) : table_(table), held_(result == 0 || result == EOWNERDEAD) {
    if (result == EOWNERDEAD) {
      count_again(table_);
      ::pthread_mutex_consistent(&table_.mutex);
    }
  }
  ~Held() {
    if (held_) {
      ::pthread_mutex_unlock(&table_.mutex);
    }
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  explicit operator bool() const { return held_; }

private:
  LedgerTable& table_;
  const bool held_;
};

bool SharedLedger::is_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

Result<std::shared_ptr<SharedLedger>> SharedLedger::join(const std::string& name, int devices, Bytes memory) {
  remove_dead_shares(name); // first: they may hold the room that this one needs
  while (true) {
    std::shared_ptr<SharedLedger> ledger(new SharedLedger(name));
    const auto opened = ledger->try_join(devices, memory);
    if (!opened) {
      return failure(opened.error());
    }
    if (*opened == Opened::kJoined) {
      return ledger;
    } // else the last member removed the file between our opening and locking it
  }
}

Result<SharedLedger::Opened> SharedLedger::try_join(int devices, Bytes memory) {
  const std::string path = ledger_path(name_);
  auto file = open_share_file(path);
  STILLWAKE_TRY(file);
  file_ = *file;
  // Joining and leaving exclude each other by a lock of the file; the table's own mutex is in the file, not made yet.
  if (::flock(file_, LOCK_EX) != 0) {
    return system_failure(path, "cannot lock");
  }
  const Cleanup unlock([this] { ::flock(file_, LOCK_UN); });
  struct stat status {};
  STILLWAKE_CHECK_EQ(::fstat(file_, &status), 0);
  if (status.st_nlink == 0) {
    return Opened::kGone;
  }
  hold_life_lock(file_);
  STILLWAKE_TRY(map_table(devices, memory));
  STILLWAKE_TRY(check_table());
  Cleanup leave_nothing([this] { remove_files_if_alone(); });
  STILLWAKE_TRY(open_devices(static_cast<int>(table_->devices)));
  const Held held(*table_);
  if (!held) {
    return damaged(path, "its lock cannot be taken");
  }
  take_back_locked();
  if (alone_locked()) {
    // Nobody lives who could have begun it otherwise.
    STILLWAKE_TRY(open_devices(devices));
    table_->devices = static_cast<std::uint32_t>(devices);
    table_->memory = memory.count();
    for (LedgerTable::Device& device : table_->device) {
      device.capacity = memory.count();
    }
  } else if (table_->devices != static_cast<std::uint32_t>(devices) || table_->memory != memory.count()) {
    return failure(ErrorCode::kInvalidArgument,
                   "the share \"" + name_ + "\" has " + std::to_string(table_->devices) + " devices of " +
                       exact(Bytes(table_->memory)) + " in use by other processes; this one asked for " +
                       std::to_string(devices) + " of " + exact(memory) + " and must ask for the same");
  }
  const auto place = free_member_locked();
  if (!place) {
    return failure(ErrorCode::kOutOfHostMemory,
                   "the share \"" + name_ + "\" is full: " + std::to_string(kMostMembers) + " drivers are open on it");
  }
  member_ = *place;
  table_->member[member_] = ProcessIdentity::own();
  joined_ = true;
  leave_nothing.cancel();
  return Opened::kJoined;
}

Result<void> SharedLedger::make_room(const std::string& path) const {
  constexpr Bytes kSize(sizeof(LedgerTable));
  if (const auto limit = over_file_limit(path, kSize.count())) {
    return failure(ErrorCode::kOutOfHostMemory, *limit);
  }
  if (const int error = allocate_space(file_, 0, kSize); error != 0) {
    return failure(ErrorCode::kOutOfHostMemory, no_room(file_, path, kSize, error));
  }
  return {};
}

Result<void> SharedLedger::map_table(int devices, Bytes memory) {
  struct stat status {};
  STILLWAKE_CHECK_EQ(::fstat(file_, &status), 0);
  const std::string path = ledger_path(name_);
  const LedgerContent content = ledger_content(file_, status);
  if (content == LedgerContent::kOther) {
    return wrong_share_file(path, "has " + exact(Bytes(static_cast<std::uint64_t>(status.st_size))) +
                                      " and is no ledger of this version of Stillwake, or a damaged one");
  }
  // All of it is allocated, so that no access to it can meet a full /dev/shm.
  if (content == LedgerContent::kNew) {
    if (auto room = make_room(path); !room) {
      ::unlink(path.c_str());
      return room;
    }
  }
  void* at = ::mmap(nullptr, sizeof(LedgerTable), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED) {
    return system_failure(path, "cannot map");
  }
  ::madvise(at, sizeof(LedgerTable), MADV_DONTFORK);
  table_ = static_cast<LedgerTable*>(at);
  if (content == LedgerContent::kLedger) {
    return {};
  }
  std::memset(at, 0, sizeof(LedgerTable));
  make_mutex(*table_);
  table_->devices = static_cast<std::uint32_t>(devices);
  table_->memory = memory.count();
  std::atomic_signal_fence(std::memory_order_release);
  table_->magic = LedgerTable::kMagic;
  return {};
}

Result<void> SharedLedger::check_table() {
  const std::string path = ledger_path(name_);
  if (const auto fault = header_fault(*table_)) {
    return damaged(path, *fault);
  }
  if (!may_be_held(file_) && !table_->has_living_member()) {
    make_mutex(*table_); // who held the old one is dead
  }
  const Held held(*table_, lock_in_time(table_->mutex));
  if (!held) {
    return damaged(path, "its lock cannot be taken");
  }
  if (const auto fault = rows_fault(*table_)) {
    return damaged(path, *fault);
  }
  count_again(*table_);
  return {};
}

Result<void> SharedLedger::open_devices(int devices) {
  for (int device = static_cast<int>(devices_.size()); device < devices; ++device) {
    auto file = open_share_device(device_path(DeviceIndex(device)));
    STILLWAKE_TRY(file);
    devices_.push_back(*file);
  }
  return {};
}

SharedLedger::~SharedLedger() {
  leave();
  if (table_ != nullptr) {
    ::munmap(table_, sizeof(LedgerTable));
  }
  for (int device : devices_) {
    ::close(device);
  }
  if (file_ >= 0) {
    ::close(file_);
  }
}

void SharedLedger::leave() {
  if (!joined_) {
    return;
  }
  joined_ = false;
  ::flock(file_, LOCK_EX);
  {
    const Held held(*table_);
    if (held) {
      release_member_locked(member_);
      take_back_locked();
    }
  }
  remove_files_if_alone();
  ::flock(file_, LOCK_UN);
}

void SharedLedger::remove_files_if_alone() {
  struct stat status {};
  if (::fstat(file_, &status) != 0 || status.st_nlink == 0) {
    return; // somebody removed the ledger: what has the names now belongs to others
  }
  const Held held(*table_);
  if (!held || table_->has_living_member()) {
    return;
  }
  const std::size_t counted = std::min<std::size_t>(table_->devices, LedgerTable::kMostDevices);
  for (std::size_t device = 0; device < std::max(devices_.size(), counted); ++device) {
    remove_share_device(emulation::device_path(name_, device));
  }
  ::unlink(ledger_path(name_).c_str());
}

std::string SharedLedger::device_path(DeviceIndex device) const {
  return emulation::device_path(name_, static_cast<std::size_t>(device.value()));
}

Result<int> SharedLedger::open_device(DeviceIndex device) const {
  const int file = ::fcntl(devices_[static_cast<std::size_t>(device.value())], F_DUPFD_CLOEXEC, 0);
  if (file < 0) {
    return system_failure(device_path(device), "cannot open");
  }
  return file;
}

std::optional<Claim> SharedLedger::take(DeviceIndex device, Bytes size) {
  const Held held(*table_);
  if (!held) {
    note_refusal(damaged(ledger_path(name_), "its lock cannot be taken").value().message);
    return std::nullopt;
  }
  LedgerTable::Device& row = table_->device[device.value()];
  const auto fits = [&] {
    return row.used <= row.capacity && size.count() <= row.capacity - row.used && size.count() <= kDeviceFileLength &&
           row.next_offset <= kDeviceFileLength - size.count();
  };
  if (!fits() && !(take_back_locked() && fits())) {
    return std::nullopt;
  }
  for (std::uint32_t tried = 0; tried < kMostClaims; ++tried) {
    const std::uint32_t place = (table_->next_claim + tried) % kMostClaims;
    LedgerTable::Holding& claim = table_->claim[place];
    if (claim.member == 0) {
      table_->next_claim = place + 1;
      claim.device = static_cast<std::uint32_t>(device.value());
      claim.offset = row.next_offset;
      claim.size = size.count();
      row.next_offset += size.count();
      row.used += size.count();
      std::atomic_signal_fence(std::memory_order_release);
      claim.member = static_cast<std::uint32_t>(member_) + 1;
      return Claim{claim.offset, size, place};
    }
  }
  note_refusal("the share \"" + name_ + "\" is full: it has " + std::to_string(kMostClaims) + " allocations");
  return std::nullopt;
}

void SharedLedger::give_back(DeviceIndex device, const Claim& claim) {
  const Held held(*table_);
  if (!held) {
    return;
  }
  LedgerTable::Holding& row = table_->claim[claim.entry];
  if (row.member != member_ + 1 || row.offset != claim.offset) {
    return; // `leave` was quicker, at exit
  }
  row.member = 0;
  table_->device[device.value()].used -= claim.size.count();
}

Bytes SharedLedger::used(DeviceIndex device) const {
  const Held held(*table_);
  return Bytes(held ? table_->device[device.value()].used : 0);
}

Bytes SharedLedger::capacity(DeviceIndex device) const {
  const Held held(*table_);
  return Bytes(held ? table_->device[device.value()].capacity : 0);
}

void SharedLedger::set_capacity(DeviceIndex device, Bytes capacity) {
  const Held held(*table_);
  if (held) {
    table_->device[device.value()].capacity = capacity.count();
  }
}

bool SharedLedger::take_back_from_the_dead() {
  const Held held(*table_);
  return held && take_back_locked();
}

bool SharedLedger::take_back_locked() {
  bool any = false;
  for (std::size_t member = 0; member < kMostMembers; ++member) {
    if (table_->member[member].number != 0 && !table_->member[member].alive()) {
      release_member_locked(member);
      any = true;
    }
  }
  return any;
}

void SharedLedger::release_member_locked(std::size_t member) {
  for (LedgerTable::Holding& claim : table_->claim) {
    if (claim.member != member + 1) {
      continue;
    }
    if (can_be(*table_, claim) && claim.device < devices_.size()) {
      ::fallocate(devices_[claim.device], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(claim.offset),
                  static_cast<off_t>(claim.size));
    }
    claim.member = 0;
  }
  count_again(*table_);
  std::atomic_signal_fence(std::memory_order_release); // a claim always has its member
  table_->member[member].number = 0;
}

bool SharedLedger::alone_locked() const {
  return std::all_of(std::begin(table_->member), std::end(table_->member),
                     [](const ProcessIdentity& one) { return one.number == 0; });
}

std::optional<std::size_t> SharedLedger::free_member_locked() const {
  for (std::size_t place = 0; place < kMostMembers; ++place) {
    if (table_->member[place].number == 0) {
      return place;
    }
  }
  return std::nullopt;
}

} // namespace stillwake::emulation
