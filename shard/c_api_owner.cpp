// SPDX-License-Identifier: Apache-2.0
#include "shard/c_api_owner.h"

#include "shard/c_api_guard.h"

#include <unordered_map>

using namespace stillwake;
using namespace stillwake::c_api;

struct stillwake_live_ranges {
  std::vector<BlockLiveRanges> blocks;
  std::unordered_map<const void*, std::size_t> index; // of a block in `blocks`
  bool incomplete = false;                            // an addition failed
};

namespace stillwake::c_api {

std::vector<BlockLiveRanges> CallbackOwner::live_ranges() {
  if (callbacks_.live_ranges == nullptr) {
    return {};
  }
  stillwake_live_ranges told;
  callbacks_.live_ranges(callbacks_.context, &told);
  if (told.incomplete) {
    return {}; // a range that got lost must not cost its content: every block counts as live
  }
  return std::move(told.blocks);
}

std::optional<bool> CallbackOwner::is_capturing(DeviceIndex device) {
  if (callbacks_.is_capturing == nullptr) {
    return std::nullopt;
  }
  const std::int32_t answer = callbacks_.is_capturing(callbacks_.context, device.value());
  return answer == 0 || answer == 1 ? std::optional<bool>(answer == 1) : std::nullopt;
}

bool CallbackOwner::memory_is_short(DeviceIndex device, Bytes needed) {
  return callbacks_.memory_is_short != nullptr &&
         callbacks_.memory_is_short(callbacks_.context, device.value(), needed.count());
}

} // namespace stillwake::c_api

extern "C" stillwake_status stillwake_live_ranges_add(stillwake_live_ranges* ranges, const void* block, uint64_t offset,
                                                      uint64_t size) {
  const stillwake_status status = guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(ranges, "ranges"));
    STILLWAKE_TRY(check_given(block, "block"));
    const auto [at, is_new] = ranges->index.try_emplace(block, ranges->blocks.size());
    if (is_new) {
      ranges->blocks.push_back({block, {}});
    }
    if (size != 0) {
      ranges->blocks[at->second].ranges.push_back({Bytes(offset), Bytes(size)});
    }
    return {};
  });
  if (status != STILLWAKE_OK && ranges != nullptr) {
    ranges->incomplete = true;
  }
  return status;
}
