// SPDX-License-Identifier: Apache-2.0
// The LedgerTable is the layout of a share's ledger file: who is a member, and which member holds which bytes.
// A process can die at any instruction: `used` can be counted again from the claims, and a claim exists once its member
// is written, which is done last.
#pragma once

#include "allocator/driver/emulation/process_identity.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stillwake::emulation {

struct LedgerTable {
  static constexpr std::uint64_t kMagic = 0x5374696C6C770001; // counts the layouts
  static constexpr std::size_t kMostMembers = 256;
  static constexpr std::size_t kMostClaims = 65536;
  static constexpr std::size_t kMostDevices = 64;

  struct Device {
    std::uint64_t capacity;
    std::uint64_t used;
    std::uint64_t next_offset;
  };
  struct Holding {
    std::uint32_t member; ///< one more than its place, 0 for none
    std::uint32_t device;
    std::uint64_t offset;
    std::uint64_t size;
  };

  std::uint64_t magic; ///< written when all else is
  std::uint64_t memory;
  std::uint32_t devices;
  std::uint32_t next_claim; ///< where to look for a free one first
  pthread_mutex_t mutex;
  Device device[kMostDevices];
  ProcessIdentity member[kMostMembers]; ///< number 0 for none
  Holding claim[kMostClaims];

  bool has_living_member() const {
    return std::any_of(std::begin(member), std::end(member),
                       [](const ProcessIdentity& one) { return one.number != 0 && one.alive(); });
  }
};

/// Where the files of shares lie.
constexpr const char* kShareFolder = "/dev/shm/";
constexpr const char* kSharePrefix = "stillwake-";
constexpr const char* kLedgerSuffix = "-ledger";

/// A file of the share: its ledger, or the memory of a device.
inline std::string ledger_path(const std::string& share) {
  return kShareFolder + (kSharePrefix + share) + kLedgerSuffix;
}
inline std::string device_path(const std::string& share, std::size_t device) {
  return kShareFolder + (kSharePrefix + share) + "-" + std::to_string(device);
}

} // namespace stillwake::emulation
