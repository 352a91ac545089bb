// SPDX-License-Identifier: Apache-2.0
#include "allocator/transfer/digest_pool.h"

#include <algorithm>

namespace stillwake {

Result<PinnedBuffer> DigestPool::take(std::size_t digests) {
  const Bytes needed(std::max<std::size_t>(digests, 1) * sizeof(PageDigest));
  {
    const RankedLock lock(mutex_);
    const auto fit =
        std::find_if(free_.begin(), free_.end(), [&](const PinnedBuffer& buffer) { return buffer.size() >= needed; });
    if (fit != free_.end()) {
      PinnedBuffer taken = std::move(*fit);
      free_.erase(fit);
      return taken;
    }
  }
  return PinnedBuffer::create(device_, needed);
}

void DigestPool::give_back(PinnedBuffer buffer) {
  if (!buffer) {
    return;
  }
  const RankedLock lock(mutex_);
  const auto larger =
      std::find_if(free_.begin(), free_.end(), [&](const PinnedBuffer& kept) { return kept.size() >= buffer.size(); });
  free_.insert(larger, std::move(buffer));
}

} // namespace stillwake
