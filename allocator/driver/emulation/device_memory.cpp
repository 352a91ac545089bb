// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/device_memory.h"

#include "allocator/driver/emulation/device_file.h"
#include "allocator/driver/emulation/refusal_note.h"

#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace stillwake::emulation {
namespace {

// Every byte has its high bit set, so none is zero; words differ from their neighbours, and read as a float or an
// integer they are nonsense.
const std::vector<std::uint64_t>& pattern_page() {
  // Never destroyed: another thread may be taking memory while the process exits.
  static const auto& page = *[] {
    auto* const words = new std::vector<std::uint64_t>(kPageBytes.size() / sizeof(std::uint64_t));
    std::uint64_t mixed = 0;
    for (std::uint64_t& word : *words) {
      mixed += 0x9E3779B97F4A7C15;
      word = (mixed ^ (mixed >> 29)) | 0x8080808080808080;
    }
    return words;
  }();
  return page;
}

} // namespace

DeviceMemory::DeviceMemory(int file, std::string path, DeviceIndex device, std::shared_ptr<Ledger> ledger,
                           std::string system_root)
    : file_(file), path_(std::move(path)), device_(device), ledger_(std::move(ledger)),
      system_root_(std::move(system_root)) {}

DeviceMemory::~DeviceMemory() { ::close(file_); }

Bytes DeviceMemory::resident() const {
  struct stat status {};
  STILLWAKE_CHECK_EQ(::fstat(file_, &status), 0);
  return Bytes(static_cast<std::uint64_t>(status.st_blocks) * 512);
}

CUresult DeviceMemory::take(Bytes size, Claim& claim) {
  do {
    const std::optional<Claim> taken = ledger_->take(device_, size);
    if (!taken) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const std::optional<std::string> limit = over_limits(*taken);
    const int error = limit ? 0 : fill(*taken);
    if (!limit && error == 0) {
      claim = *taken;
      return CUDA_SUCCESS;
    }
    give_back(*taken); // before what is free is read: the part that was filled is free as well
    note_refusal(limit ? *limit : no_room(file_, path_, size, error));
  } while (ledger_->take_back_from_the_dead()); // the system is full, though the device is not
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// What the system would answer with the end of the process: asked first.
std::optional<std::string> DeviceMemory::over_limits(const Claim& claim) const {
  if (auto limit = over_file_limit(path_, claim.offset + claim.size.count())) {
    return limit;
  }
  return pattern_ ? over_group_limit(path_, claim.size, system_root_) : std::nullopt; // unfilled, it takes nothing yet
}

// The system's error, 0 for success.
int DeviceMemory::fill(const Claim& claim) {
  if (!pattern_) {
    // The space must be there, or touching it would be SIGBUS on a full file system.
    return ledger_->shared() ? allocate_space(file_, claim.offset, claim.size) : 0;
  }
  // Writing through the file takes no page fault, and a full system answers with an error instead of a signal.
  for (Bytes done; done < claim.size; done += kPageBytes) {
    std::size_t at = 0;
    while (at < kPageBytes.size()) {
      const char* from = reinterpret_cast<const char*>(pattern_page().data()) + at;
      const ssize_t written =
          ::pwrite(file_, from, kPageBytes.size() - at, static_cast<off_t>(claim.offset + done.count() + at));
      if (written <= 0) {
        if (written < 0 && errno == EINTR) {
          continue;
        }
        return written < 0 ? errno : ENOSPC;
      }
      at += static_cast<std::size_t>(written);
    }
  }
  return 0;
}

void DeviceMemory::give_back(const Claim& claim) {
  // Punched first: whoever is told that bytes are free finds them free in the system, too.
  STILLWAKE_CHECK_EQ(::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(claim.offset),
                                 static_cast<off_t>(claim.size.count())),
                     0);
  ledger_->give_back(device_, claim);
}

} // namespace stillwake::emulation
