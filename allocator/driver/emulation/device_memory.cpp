// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/device_memory.h"

#include <cerrno>
#include <cstring>
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
  static const std::vector<std::uint64_t> page = [] {
    std::vector<std::uint64_t> words(kPageBytes.size() / sizeof(std::uint64_t));
    std::uint64_t mixed = 0;
    for (std::uint64_t& word : words) {
      mixed += 0x9E3779B97F4A7C15;
      word = (mixed ^ (mixed >> 29)) | 0x8080808080808080;
    }
    return words;
  }();
  return page;
}

} // namespace

Result<void> lengthen_device_file(int file) {
  constexpr off_t kLength = off_t{1} << 60;
  if (::ftruncate(file, kLength) != 0) {
    return failure(ErrorCode::kOutOfHostMemory,
                   std::string("a sparse file for the emulated device was refused: ") + std::strerror(errno));
  }
  return {};
}

Result<int> private_device_file() {
  const int file = ::memfd_create("stillwake-device", MFD_CLOEXEC);
  if (file < 0) {
    return failure(ErrorCode::kOutOfHostMemory,
                   std::string("memory for the emulated device was refused: ") + std::strerror(errno));
  }
  if (auto lengthened = lengthen_device_file(file); !lengthened) {
    ::close(file);
    return failure(std::move(lengthened).error());
  }
  return file;
}

DeviceMemory::DeviceMemory(int file, DeviceIndex device, std::shared_ptr<Ledger> ledger)
    : file_(file), device_(device), ledger_(std::move(ledger)) {}

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
    if (fill(*taken)) {
      claim = *taken;
      return CUDA_SUCCESS;
    }
    give_back(*taken);
  } while (ledger_->take_back_from_the_dead()); // the system is full, though the device is not
  return CUDA_ERROR_OUT_OF_MEMORY;
}

bool DeviceMemory::fill(const Claim& claim) {
  if (!pattern_) {
    // The space must be there, or touching it would be SIGBUS on a full file system.
    if (!ledger_->shared()) {
      return true;
    }
    int error = EINTR;
    while (error == EINTR) {
      error = ::posix_fallocate(file_, static_cast<off_t>(claim.offset), static_cast<off_t>(claim.size.count()));
    }
    return error == 0;
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
        return false;
      }
      at += static_cast<std::size_t>(written);
    }
  }
  return true;
}

void DeviceMemory::give_back(const Claim& claim) {
  // Punched first: whoever is told that bytes are free finds them free in the system, too.
  STILLWAKE_CHECK_EQ(::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(claim.offset),
                                 static_cast<off_t>(claim.size.count())),
                     0);
  ledger_->give_back(device_, claim);
}

} // namespace stillwake::emulation
