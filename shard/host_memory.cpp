// SPDX-License-Identifier: Apache-2.0
#include "shard/host_memory.h"

#include "allocator/base/base.h"
#include "shard/registry.h"

namespace stillwake {

void set_host_budget(Driver& driver, std::optional<Bytes> limit) {
  if (in_reach()) {
    Registry::of(driver).arena().budget().set_limit(limit);
  }
}

Result<void> set_pinning_threads(Driver& driver, int count) {
  STILLWAKE_TRY(in_reach());
  if (count < 0 || count > 256) {
    return failure(ErrorCode::kInvalidArgument,
                   std::to_string(count) + " pinning threads; 0 (as many as cores, 16 at most) to 256 are possible");
  }
  if (!driver.is_open()) {
    return failure(moved_from("Driver"));
  }
  Registry::of(driver).arena().set_pinning_threads(count);
  return {};
}

Bytes host_pinned(Driver& driver) { return in_reach() ? Registry::of(driver).arena().pinned() : Bytes(); }

} // namespace stillwake
