// SPDX-License-Identifier: Apache-2.0
// A DeviceSwap is the part of a swap that happens on one device. A saver thread copies the outgoing extents out, batch
// by batch; behind it the caller's thread unmaps each batch, maps its handles for the incoming set and starts to
// restore there. Both directions of the bus are busy at once, within the larger set plus a working margin.
//
// Both backings are kept until the verdict, so everything can be undone: `roll_back` puts the outgoing extents back
// into the same handles and restores them from their backing.
#pragma once

#include "shard/arrivals.h"
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

/// The shards of both sets on one device.
struct SwapSides {
  /// An incoming shard.
  struct Incoming {
    ShardCore* core = nullptr;
    std::vector<PageRange> backed; ///< live pages that kept their memory, when an unmap failed; their content is old
  };

  Device* device = nullptr;
  std::vector<ShardCore*> outgoing;
  SavePlan* plan = nullptr; ///< pages of `outgoing` to be kept, in address order by shard; null: nothing to keep
  std::vector<Incoming> incoming;
  std::vector<Arrival> arrivals; ///< what `incoming` lacks memory for, in the order in which it comes
};

/// An outgoing shard that could not be put back, and why.
struct Unproven {
  ShardCore* core;
  Error error;
};

class DeviceSwap {
public:
  DeviceSwap(SwapSides sides, Bytes chunk);
  ~DeviceSwap();

  // In this order. After an error of `save_all` or `run` a `roll_back` is owed; those before have changed nothing.

  /// Takes the memory that the incoming set needs beyond the outgoing one, and the margin if it is there.
  [[nodiscard]] Result<void> take_fresh();
  /// Gives it back. Not once `run` has begun.
  void drop_fresh();
  /// Pages that were, or are, missing on the device.
  Pages lacking() const { return lacking_; }
  /// Saves the outgoing set before any of it is unmapped. Optional: `run` saves what is not saved yet as it goes.
  [[nodiscard]] Result<void> save_all();
  /// Moves everything and waits for the verdict.
  [[nodiscard]] Result<void> run();
  /// Waits until nothing more is copied out; the pages that wait for host memory need it until then.
  void stop_saving();
  /// Puts the outgoing set back: answers those of its shards whose content is not proven. Shards none of whose pages
  /// had left are as they were. The incoming set has no memory of ours then.
  [[nodiscard]] std::vector<Unproven> roll_back();
  /// Gives back what the incoming set did not need. After a run that succeeded.
  void conclude(Report& report);

  Device& device() const { return device_; }

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
    std::size_t shard;
    PageRange pages;
    Physical handle; ///< while it is rolled back
  };

  void make_batches();
  void keep_fresh(std::vector<Physical> handles);
  void save_batches();
  Result<std::optional<std::size_t>> next_saved();
  Result<void> unmap_batch(const Batch& batch);
  Result<void> fill();
  Result<Physical> handle_for(Pages most, BlockKind kind);
  Result<void> start_restore(std::size_t shard, PageRange pages);
  Result<void> await_verdict();
  bool is_filled() const { return next_ == arrivals_.size(); }
  void forget_unsaved();
  void take_back_arrivals();
  void release_pool(ExtentMap& keeper, Report& report);
  Result<void> put_back(std::size_t shard);

  Device& device_;
  const std::vector<ShardCore*> outgoing_;
  SavePlan* const plan_;
  const std::vector<SwapSides::Incoming> incoming_;
  const std::vector<Arrival> arrivals_;
  const Bytes chunk_;
  Report report_;

  std::vector<Batch> batches_;
  HandlePool pool_;
  Pages leaving_; // of the outgoing set
  Pages coming_;  // into the incoming set
  Pages held_;    // all handles of both sets and the pool
  Pages lacking_;
  std::size_t next_ = 0; // the arrival that gets the next handle
  Pages done_;           // of that arrival
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
