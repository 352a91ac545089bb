// SPDX-License-Identifier: Apache-2.0
// A Waking is one wake from its commit to its verdict: the restore jobs, who is woken, and what is told about it.
// Tickets and the woken shards share it. It holds the shards' transitions until it is settled.
#pragma once

#include "shard/shard_core.h"
#include "shard/ticket.h"

#include <memory>
#include <vector>

namespace stillwake {

/// Where the addresses of a shard are. It may outlive the shard.
struct ShardPlace {
  explicit ShardPlace(const ShardCore& shard)
      : name(shard.name()), base(shard.reservation().base()), size(shard.reservation().size()) {}

  bool contains(DeviceAddress address) const { return base <= address && address < base + size; }
  /// kInvalidArgument for a range that starts here and is empty, or ends elsewhere.
  [[nodiscard]] Result<void> check_range(DeviceAddress address, Bytes length) const;

  std::string name;
  DeviceAddress base;
  Bytes size;
};

/// A shard that is being woken, and where its pages are in its device's job.
struct WakingShard : ShardPlace {
  explicit WakingShard(ShardCore& shard) : ShardPlace(shard), core(&shard) {}

  ShardCore* core;                         ///< null once settled: the shard may be gone
  std::size_t job = 0;                     ///< index into the jobs
  std::vector<std::uint32_t> task_of_page; ///< by page of the reservation; kNoTask where nothing is mapped
  std::vector<PageRange> kept;             ///< pages that stay pinned after the wake
};
constexpr std::uint32_t kNoTask = ~std::uint32_t{0};

/// Who a task of a job belongs to.
struct TaskOwner {
  std::uint32_t shard;
  Pages page;
};

struct WakingJob {
  Device* device = nullptr;
  std::shared_ptr<RestoreJob> restore; ///< null: nothing was mapped on this device
  std::vector<TaskOwner> owners;       ///< by task
};

class Waking {
public:
  /// `ready`: shards of the set that were awake already, so that nobody need know which those were to wait for a range.
  Waking(std::vector<WakingShard> shards, std::vector<ShardPlace> ready, std::vector<WakingJob> jobs, Report report,
         TimePoint begin, TimePoint restoring, Clock& clock);

  /// Holds up everybody who would settle it, until the shards are handed over.
  [[nodiscard]] RankedLock lock() { return RankedLock(mutex_); }

  [[nodiscard]] Result<void> wait_all(Stream stream);
  [[nodiscard]] Result<void> wait_range(Stream stream, DeviceAddress address, Bytes size);
  /// Makes the stream wait for everything of one shard; for allocations while it wakes.
  [[nodiscard]] Result<void> wait_shard(const ShardCore& shard, Stream stream);
  bool is_done();
  /// Waits, settles once, and tells the verdict; again and again. When the waiting itself fails nothing is settled: the
  /// shards are still waking, and asking again is right.
  [[nodiscard]] Result<Report> result();
  /// For a shard that is destroyed: settles whatever happens; without a verdict its shards are lost.
  void give_up();
  /// Settles when everything is done already; never waits for the device.
  void poll();

private:
  Result<void> wait_for_jobs();
  Result<void> settle(); // mutex_ held; waits for the jobs
  void conclude(const std::vector<std::vector<Pages>>& mismatched, bool verified, bool lost);
  void settle_shard(WakingShard& shard, const std::vector<Pages>& mismatched, bool lost);
  Result<void> wait_chunk(WakingJob& job, Stream stream, std::size_t chunk);

  RankedMutex mutex_{LockRank::kTransition};
  std::vector<WakingShard> shards_;
  const std::vector<ShardPlace> ready_;
  std::vector<WakingJob> jobs_;
  Report report_;
  std::optional<Error> error_;
  TimePoint begin_;     // of the wake
  TimePoint restoring_; // of its last step
  Clock& clock_;
  bool settled_ = false;
  std::atomic<bool> done_{false};
};

} // namespace stillwake
