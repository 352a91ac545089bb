// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/host_arena.h"

#include "allocator/host/pinning_workers.h"

namespace stillwake {

HostArena::HostArena(HostArenaOptions options)
    : budget_(options.budget), workers_(std::make_unique<PinningWorkers>(options.pinning_threads)) {}

HostArena::~HostArena() {
  if (driver_is_out_of_reach()) {
    (void)workers_.release(); // a forked child cannot join them, nor destroy what they wait on
  }
}

void HostArena::set_pinning_threads(int count) { workers_->set_count(count); }

} // namespace stillwake
