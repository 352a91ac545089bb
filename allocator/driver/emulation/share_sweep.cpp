// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/share_sweep.h"

#include "allocator/base/base.h"
#include "allocator/driver/emulation/device_file.h"
#include "allocator/driver/emulation/ledger_content.h"
#include "allocator/driver/emulation/ledger_table.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

namespace stillwake::emulation {
namespace {

// Beyond the table, and of another kind than the lock that joining and leaving take on the whole file.
struct flock life_lock(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = off_t{1} << 40;
  lock.l_len = 1;
  return lock;
}

// The ledger is locked: nobody joins meanwhile. A new one was begun by a process that died before it wrote it, or by
// one that waits for our lock, and then finds the file gone and makes another.
bool is_dead(int ledger, const struct stat& status) {
  if (may_be_held(ledger)) {
    return false;
  }
  const LedgerContent content = ledger_content(ledger, status);
  if (content != LedgerContent::kLedger) {
    return content == LedgerContent::kNew; // else of another version, or no ledger at all
  }
  void* at = ::mmap(nullptr, sizeof(LedgerTable), PROT_READ, MAP_SHARED, ledger, 0);
  if (at == MAP_FAILED) {
    return false;
  }
  const Cleanup unmap([at] { ::munmap(at, sizeof(LedgerTable)); });
  return !static_cast<const LedgerTable*>(at)->has_living_member();
}

void remove_if_dead(const std::string& share) {
  const std::string path = ledger_path(share);
  const int ledger = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (ledger < 0) {
    return;
  }
  const Cleanup close([ledger] { ::close(ledger); }); // and the lock goes with it
  struct stat status {};
  if (::flock(ledger, LOCK_EX | LOCK_NB) != 0 || ::fstat(ledger, &status) != 0 || status.st_nlink == 0 ||
      !S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || !is_dead(ledger, status)) {
    return;
  }
  for (std::size_t device = 0; device < LedgerTable::kMostDevices; ++device) {
    remove_share_device(device_path(share, device));
  }
  ::unlink(path.c_str());
}

std::vector<std::string> shares() {
  const std::string prefix = kSharePrefix;
  const std::string suffix = kLedgerSuffix;
  std::vector<std::string> names;
  std::error_code ignored; // of a folder that is not there
  for (std::filesystem::directory_iterator entry(kShareFolder, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string file = entry->path().filename().string();
    if (file.size() > prefix.size() + suffix.size() && file.compare(0, prefix.size(), prefix) == 0 &&
        file.compare(file.size() - suffix.size(), suffix.size(), suffix) == 0) {
      names.push_back(file.substr(prefix.size(), file.size() - prefix.size() - suffix.size()));
    }
  }
  return names;
}

} // namespace

void hold_life_lock(int ledger) {
  struct flock lock = life_lock(F_RDLCK);
  ::fcntl(ledger, F_OFD_SETLK, &lock); // refused on systems without such locks: process numbers alone decide there
}

bool may_be_held(int ledger) {
  struct flock lock = life_lock(F_WRLCK);
  return ::fcntl(ledger, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void remove_dead_shares(const std::string& own) {
  for (const std::string& share : shares()) {
    if (share != own) {
      remove_if_dead(share);
    }
  }
}

} // namespace stillwake::emulation
