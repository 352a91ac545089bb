// SPDX-License-Identifier: Apache-2.0
// A DigestPool keeps pinned buffers for the digests that a wake fetches. It only grows: one wake after another needs no
// driver call, and the smallest buffer that is large enough is handed out.
#pragma once

#include "allocator/host/host.h"
#include "allocator/transfer/page_digest.h"

#include <vector>

namespace stillwake {

class DigestPool {
public:
  explicit DigestPool(Device& device) : device_(device) {}

  /// Room for so many digests, at least one. Any thread.
  [[nodiscard]] Result<PinnedBuffer> take(std::size_t digests);
  void give_back(PinnedBuffer buffer);

private:
  Device& device_;
  RankedMutex mutex_{LockRank::kTransferPool};
  std::vector<PinnedBuffer> free_; // guarded by mutex_, smallest first
};

} // namespace stillwake
