// SPDX-License-Identifier: Apache-2.0
// HostRegistrations are the pieces of host memory that are pinned. A piece is bytes, not pages, as with the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <map>
#include <mutex>

namespace stillwake::emulation {

/// Any thread.
class HostRegistrations {
public:
  /// What the driver would make of a host range in a copy.
  enum class Kind {
    kPageable, ///< begins in no piece
    kPinned,   ///< lies in one piece
    kCut       ///< begins in a piece and leaves it: refused
  };

  CUresult add(void* pointer, std::size_t size, unsigned flags);
  CUresult remove(void* pointer);
  /// What `remove` would answer.
  CUresult check_removable(void* pointer) const;
  Kind kind(const void* pointer, std::size_t size) const;
  std::uint64_t count() const;

private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> pieces_; // size by first byte; guarded by mutex_
};

} // namespace stillwake::emulation
