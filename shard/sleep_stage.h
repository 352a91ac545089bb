// SPDX-License-Identifier: Apache-2.0
// A SleepStage is a sleep between its halves. `prepare` does everything that can fail and be undone: check, quiesce,
// plan, reserve host memory, copy. `commit` unmaps and releases; its first successful unmap is the point of no return.
#pragma once

#include "shard/save_plan.h"
#include "shard/shard_set.h"

#include <memory>
#include <vector>

namespace stillwake {

class SleepStage {
public:
  /// Check, quiesce, plan and reserve; nothing is copied yet. A swap goes on from here by itself.
  [[nodiscard]] static Result<std::unique_ptr<SleepStage>> begin(const std::vector<ShardCore*>& set,
                                                                 const SleepOptions& options);
  [[nodiscard]] static Result<std::unique_ptr<SleepStage>> prepare(const std::vector<ShardCore*>& set,
                                                                   const SleepOptions& options);
  /// Abandons what was not committed.
  ~SleepStage();

  [[nodiscard]] Result<Report> commit();
  void abandon();

  // For a swap.

  /// What has to be saved, by device.
  std::vector<SavePlan>& plans() { return plans_; }
  Report& report() { return report_; }
  /// Waits for host memory that is still being pinned.
  Result<void> finish_pinning();
  /// In checked mode, when all is saved: quiesces and hashes again. kBusy: something was written meanwhile.
  [[nodiscard]] Result<void> prove_unchanged();
  /// Everything was saved and given back by the caller: the shards that were awake are asleep now.
  void conclude();
  std::vector<ShardCore*> shards() const;

private:
  struct Part {
    ShardCore* core = nullptr;
    LivePages live;
    std::unique_ptr<PinningJob> pinning;
  };
  SleepStage(const SleepOptions& options, Clock& clock);
  Result<void> hold(const std::vector<ShardCore*>& set);
  Result<void> seal_and_quiesce();
  /// Passes on what a step answered; when that is kLost, the shards whose device it was are lost.
  Result<void> note_loss(Result<void> outcome);
  Result<void> quiesce_all();
  Result<void> plan();
  Result<void> reserve_host();
  Result<void> copy();
  void note_step(const char* name, TimePoint begin, Bytes bytes = Bytes());

  SleepOptions options_;
  Clock& clock_;
  HeldSet held_;
  std::vector<Part> parts_;                        // awake before: sealed, then staged
  std::vector<ShardCore*> asleep_;                 // were asleep already
  std::vector<std::vector<BlockLiveRanges>> told_; // by part
  std::vector<SavePlan> plans_;                    // one a device
  Report report_;
  TimePoint begin_;
  bool over_ = false; // committed or abandoned
};

} // namespace stillwake
