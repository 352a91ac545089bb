// SPDX-License-Identifier: Apache-2.0
// A DeviceSwap is the part of a swap that happens on one device. A saver thread copies the outgoing extents out, batch
// by batch; behind it the caller's thread unmaps each batch, maps its handles for the incoming set and starts to
// restore there. Both directions of the bus are busy at once, within the larger set plus a working margin.
//
// Both backings are kept until the verdict, so everything can be undone: `roll_back` puts the outgoing extents back
// into the same handles and restores them from their backing.
#pragma once

#include "shard/handle_pool.h"
#include "shard/restore_plan.h"
#include "shard/save_plan.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <thread>

namespace stillwake {

/// Memory that a swap may hold beyond the larger of its two sets.
constexpr Pages kSwapMargin{256};

class DeviceSwap {
public:
  /// An incoming shard and the runs of it that have no memory yet.
  struct Incoming {
    ShardCore* core = nullptr;
    std::vector<MappedRun> missing;
  };

  /// `plan` holds the pages of `outgoing` that must be kept, in address order by shard; it may be null (nothing to
  /// keep).
  DeviceSwap(Device& device, std::vector<ShardCore*> outgoing, SavePlan* plan, std::vector<Incoming> incoming,
             Bytes chunk);
  ~DeviceSwap();

  /// Moves everything and waits for the verdict. After an error `roll_back` is owed.
  [[nodiscard]] Result<void> run();
  /// Waits until nothing more is copied out; the pages that wait for host memory need it until then.
  void stop_saving();
  /// The outgoing set as it was before, or the reason why that failed too; the incoming set has no memory of ours then.
  [[nodiscard]] Result<void> roll_back();
  /// Gives back what the incoming set did not need. After a run that succeeded.
  void conclude(Report& report);

  Report& report() { return report_; }

private:
  /// Neighbouring outgoing extents that travel together, and their tasks in the plan.
  struct Batch {
    std::size_t shard = 0;
    std::size_t extents = 0; ///< how many, from the front of what the shard still has mapped
    std::size_t first_task = 0;
    std::size_t tasks = 0;
  };
  /// An outgoing extent that was unmapped, to be put back by a roll-back.
  struct Unmapped {
    ShardCore* core;
    PageRange pages;
  };
  /// Where the next handle goes.
  struct Cursor {
    std::size_t shard = 0;
    std::size_t run = 0;
    Pages done; ///< of that run
  };

  void make_batches();
  Result<void> take_fresh();
  void save_batches();
  Result<std::optional<std::size_t>> next_saved();
  Result<void> unmap_batch(const Batch& batch);
  Result<void> fill();
  Result<Physical> handle_for(Pages most, BlockKind kind);
  Result<void> start_restore(std::size_t shard, PageRange pages);
  Result<void> await_verdict();
  bool is_filled() const { return cursor_.shard == incoming_.size(); }
  void skip_empty();

  Device& device_;
  std::vector<ShardCore*> outgoing_;
  SavePlan* plan_;
  std::vector<Incoming> incoming_;
  Bytes chunk_;
  Report report_;

  std::vector<Batch> batches_;
  HandlePool pool_;
  Pages held_;    // all handles of both sets and the pool
  Pages allowed_; // the larger set plus the margin
  Cursor cursor_;
  std::vector<Unmapped> unmapped_;
  std::vector<std::vector<Extent>> placed_; // by incoming shard
  std::vector<WakingShard> waking_;         // by incoming shard
  std::vector<WakingJob> jobs_;
  std::uint64_t restore_copies_ = 0; // report_.copies is the saver's while it runs

  std::thread saver_;
  std::mutex mutex_; // guards what follows; nothing is called under it
  std::condition_variable changed_;
  std::size_t saved_ = 0; // batches
  bool stop_ = false;
  std::optional<Error> save_error_;
  std::size_t taken_over_ = 0; // batches whose unmapping was begun; the caller's thread only
};

} // namespace stillwake
