// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/shared_ledger.h"

#include "allocator/driver/emulation/device_file.h"
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
#include <cerrno>
#include <cstring>

namespace stillwake::emulation {
namespace {

constexpr std::size_t kMostMembers = LedgerTable::kMostMembers;
constexpr std::size_t kMostClaims = LedgerTable::kMostClaims;

tl::unexpected<Error> system_failure(const std::string& path, const char* what) {
  return failure(ErrorCode::kOutOfHostMemory, std::string(what) + " " + path + ": " + std::strerror(errno));
}

} // namespace

// Robust: when a holder dies the next one hears of it, and sets the counts right.
class SharedLedger::Held {
public:
  explicit Held(LedgerTable& table) : table_(table) {
    const int result = ::pthread_mutex_lock(&table_.mutex);
    if (result == EOWNERDEAD) {
      for (LedgerTable::Device& device : table_.device) {
        device.used = 0;
      }
      for (const LedgerTable::Holding& claim : table_.claim) {
        if (claim.member != 0) {
          table_.device[claim.device].used += claim.size;
        }
      }
      ::pthread_mutex_consistent(&table_.mutex);
    } else {
      STILLWAKE_CHECK_EQ(result, 0);
    }
  }
  ~Held() { ::pthread_mutex_unlock(&table_.mutex); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

private:
  LedgerTable& table_;
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
  STILLWAKE_TRY(make_table(devices, memory));
  Cleanup leave_nothing([this] { remove_files_if_alone(); });
  STILLWAKE_TRY(open_devices(static_cast<int>(std::max<std::uint32_t>(table_->devices, 1))));
  const Held held(*table_);
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
  if (::ftruncate(file_, 0) != 0) {
    return system_failure(path, "cannot empty");
  }
  if (const int error = allocate_space(file_, 0, kSize); error != 0) {
    return failure(ErrorCode::kOutOfHostMemory, no_room(file_, path, kSize, error));
  }
  return {};
}

Result<void> SharedLedger::make_table(int devices, Bytes memory) {
  struct stat status {};
  STILLWAKE_CHECK_EQ(::fstat(file_, &status), 0);
  const bool fresh = status.st_size != static_cast<off_t>(sizeof(LedgerTable));
  // All of it is allocated, so that no access to it can meet a full /dev/shm.
  const std::string path = ledger_path(name_);
  if (fresh) {
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
  if (!fresh && table_->magic == LedgerTable::kMagic) {
    return {};
  }
  // New, or begun by a process that died before the magic was written: nobody uses it yet.
  std::memset(at, 0, sizeof(LedgerTable));
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&table_->mutex, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  table_->devices = static_cast<std::uint32_t>(devices);
  table_->memory = memory.count();
  table_->magic = LedgerTable::kMagic;
  return {};
}

Result<void> SharedLedger::open_devices(int devices) {
  for (int device = static_cast<int>(devices_.size()); device < devices; ++device) {
    const std::string path = device_path(DeviceIndex(device));
    auto file = open_share_file(path);
    STILLWAKE_TRY(file);
    devices_.push_back(*file);
    STILLWAKE_TRY(lengthen_device_file(*file, path));
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
    release_member_locked(member_);
    take_back_locked();
  }
  remove_files_if_alone();
  ::flock(file_, LOCK_UN);
}

void SharedLedger::remove_files_if_alone() {
  const Held held(*table_);
  if (table_->has_living_member()) {
    return;
  }
  for (std::size_t device = 0; device < std::max<std::size_t>(devices_.size(), table_->devices); ++device) {
    ::unlink(emulation::device_path(name_, device).c_str());
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
  LedgerTable::Device& row = table_->device[device.value()];
  const auto fits = [&] { return row.used <= row.capacity && size.count() <= row.capacity - row.used; };
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
      claim.member = static_cast<std::uint32_t>(member_) + 1;
      return Claim{claim.offset, size, place};
    }
  }
  note_refusal("the share \"" + name_ + "\" is full: it has " + std::to_string(kMostClaims) + " allocations");
  return std::nullopt;
}

void SharedLedger::give_back(DeviceIndex device, const Claim& claim) {
  const Held held(*table_);
  LedgerTable::Holding& row = table_->claim[claim.entry];
  if (row.member != member_ + 1 || row.offset != claim.offset) {
    return; // `leave` was quicker, at exit
  }
  row.member = 0;
  table_->device[device.value()].used -= claim.size.count();
}

Bytes SharedLedger::used(DeviceIndex device) const {
  const Held held(*table_);
  return Bytes(table_->device[device.value()].used);
}

Bytes SharedLedger::capacity(DeviceIndex device) const {
  const Held held(*table_);
  return Bytes(table_->device[device.value()].capacity);
}

void SharedLedger::set_capacity(DeviceIndex device, Bytes capacity) {
  const Held held(*table_);
  table_->device[device.value()].capacity = capacity.count();
}

bool SharedLedger::take_back_from_the_dead() {
  const Held held(*table_);
  return take_back_locked();
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
    ::fallocate(devices_[claim.device], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(claim.offset),
                static_cast<off_t>(claim.size));
    table_->device[claim.device].used -= claim.size;
    claim.member = 0;
  }
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
