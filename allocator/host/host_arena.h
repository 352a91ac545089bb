// SPDX-License-Identifier: Apache-2.0
// The HostArena is all pinned host memory of one driver: the budget, the threads that touch and pin, and small pinned
// buffers that are there from the start. Mirrors are made in it and must go before it.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/host/host_budget.h"
#include "allocator/host/mirror.h"

#include <memory>
#include <optional>

namespace stillwake {

struct HostArenaOptions {
  std::optional<Bytes> budget;
  int pinning_threads =
      0; ///< 0: as many as the machine has cores, 16 at most. 1 makes the order of calls deterministic.
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
  /// Bytes of all mirrors that are pinned now.
  Bytes pinned() const { return budget_.used(); }

private:
  friend class Mirror;
  friend class MirrorPinningJob;
  HostBudget budget_;
  class Workers;
  std::unique_ptr<Workers> workers_;
};

/// A small pinned buffer (4 KiB granularity), for digests and verdicts. Not counted in the budget: it is taken at open.
class PinnedBuffer {
public:
  [[nodiscard]] static Result<PinnedBuffer> create(Device& device, Bytes size);
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  Bytes size_;
};

} // namespace stillwake
