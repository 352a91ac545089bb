// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/ledger_content.h"

#include "allocator/base/base.h"
#include "allocator/driver/emulation/device_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

namespace stillwake::emulation {
namespace {

bool read_at(int file, std::size_t offset, void* to, std::size_t size) {
  while (size != 0) {
    const ssize_t got = ::pread(file, to, size, static_cast<off_t>(offset));
    if (got <= 0) {
      if (got < 0 && errno == EINTR) {
        continue;
      }
      return false;
    }
    to = static_cast<char*>(to) + got;
    offset += static_cast<std::size_t>(got);
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

void make(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&mutex, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
}

// A mutex of another kind can end the process or wait in ways that no limit of time reaches.
bool is_our_kind(const pthread_mutex_t& mutex) {
#ifdef __GLIBC__
  pthread_mutex_t ours;
  make(ours);
  const bool same = mutex.__data.__kind == ours.__data.__kind;
  ::pthread_mutex_destroy(&ours);
  return same;
#else
  static_cast<void>(mutex);
  return true;
#endif
}

std::string counted(const char* what, std::size_t place, std::uint64_t is) {
  return std::string(what) + " " + std::to_string(place) + " is " + std::to_string(is);
}

} // namespace

LedgerContent ledger_content(int file, const struct stat& status) {
  if (status.st_size == 0) {
    return LedgerContent::kNew;
  }
  std::uint64_t magic = 0;
  if (status.st_size != static_cast<off_t>(sizeof(LedgerTable)) || !read_at(file, 0, &magic, sizeof magic)) {
    return LedgerContent::kOther;
  }
  if (magic == LedgerTable::kMagic) {
    return LedgerContent::kLedger;
  }
  // Before the magic only the header is written.
  std::vector<char> rows(sizeof(LedgerTable) - offsetof(LedgerTable, device));
  const bool begun = magic == 0 && read_at(file, offsetof(LedgerTable, device), rows.data(), rows.size()) &&
                     std::all_of(rows.begin(), rows.end(), [](char byte) { return byte == 0; });
  return begun ? LedgerContent::kNew : LedgerContent::kOther;
}

void make_mutex(LedgerTable& table) { make(table.mutex); }

std::optional<std::string> header_fault(const LedgerTable& table) {
  if (table.devices < 1 || table.devices > LedgerTable::kMostDevices) {
    return "it counts " + std::to_string(table.devices) + " devices";
  }
  if (table.memory < kPageBytes.count() || table.memory > kDeviceFileLength) {
    return "its devices have " + std::to_string(table.memory) + " bytes";
  }
  if (!is_our_kind(table.mutex)) {
    return "its lock is of no kind that is made";
  }
  return std::nullopt;
}

bool can_be(const LedgerTable& table, const LedgerTable::Holding& claim) {
  return claim.device < std::min<std::size_t>(table.devices, LedgerTable::kMostDevices) && claim.size != 0 &&
         claim.size <= kDeviceFileLength && claim.offset <= kDeviceFileLength - claim.size;
}

std::optional<std::string> rows_fault(const LedgerTable& table) {
  for (std::size_t place = 0; place < LedgerTable::kMostMembers; ++place) {
    if (table.member[place].number < 0) {
      return "member " + std::to_string(place) + " is process " + std::to_string(table.member[place].number);
    }
  }
  for (std::size_t place = 0; place < LedgerTable::kMostDevices; ++place) {
    const LedgerTable::Device& device = table.device[place];
    if (device.capacity > kDeviceFileLength) {
      return counted("the capacity of device", place, device.capacity);
    }
    if (device.next_offset > kDeviceFileLength) {
      return counted("the next offset of device", place, device.next_offset);
    }
  }
  std::array<std::uint64_t, LedgerTable::kMostDevices> held{};
  for (std::size_t place = 0; place < LedgerTable::kMostClaims; ++place) {
    const LedgerTable::Holding& claim = table.claim[place];
    if (claim.member == 0) {
      continue;
    }
    if (claim.member > LedgerTable::kMostMembers || table.member[claim.member - 1].number == 0) {
      return "claim " + std::to_string(place) + " belongs to no member";
    }
    if (!can_be(table, claim) || claim.offset + claim.size > table.device[claim.device].next_offset) {
      return "claim " + std::to_string(place) + " lies where no memory was given out";
    }
    held[claim.device] += claim.size; // no overflow: neither is more than a file's length
    if (held[claim.device] > table.device[claim.device].next_offset) {
      return "the claims on device " + std::to_string(claim.device) + " overlap";
    }
  }
  return std::nullopt;
}

void count_again(LedgerTable& table) {
  for (LedgerTable::Device& device : table.device) {
    device.used = 0;
  }
  for (const LedgerTable::Holding& claim : table.claim) {
    if (claim.member != 0 && can_be(table, claim)) {
      table.device[claim.device].used += claim.size;
    }
  }
}

} // namespace stillwake::emulation
