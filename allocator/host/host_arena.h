// SPDX-License-Identifier: Apache-2.0
// The HostArena is all pinned host memory of one driver: the budget and the threads that touch and pin. Mirrors are
// made in it and must go before it. In a child made by fork it is inert, as they are.
#pragma once

#include "allocator/host/host_budget.h"

#include <memory>
#include <optional>

namespace stillwake {

class PinningWorkers;

struct HostArenaOptions {
  std::optional<Bytes> budget;
  /// 0: as many as the machine has cores, 16 at most. 1: none of our own, the caller of a job does its work in address
  /// order where it would wait, which makes the order of all driver calls deterministic.
  int pinning_threads = 0;
};

class HostArena {
public:
  explicit HostArena(HostArenaOptions options = {});
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  HostBudget& budget() { return budget_; }
  /// Takes effect from the next job on.
  void set_pinning_threads(int count);
  /// Bytes of all mirrors that are pinned now, and of those that a job has still to pin.
  Bytes pinned() const { return budget_.used(); }

private:
  friend class MirrorPinningJob;
  HostBudget budget_;
  std::unique_ptr<PinningWorkers> workers_;
};

} // namespace stillwake
