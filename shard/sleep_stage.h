// SPDX-License-Identifier: Apache-2.0
// A SleepStage is a sleep between its halves. `prepare` does everything that can fail and be undone: check, quiesce,
// plan, reserve host memory, copy. `commit` unmaps and releases; its first successful unmap is the point of no return.
#pragma once

#include "shard/report.h"
#include "shard/shard_set.h"

#include <memory>
#include <vector>

namespace stillwake {

class SleepStage {
public:
  [[nodiscard]] static Result<std::unique_ptr<SleepStage>> prepare(const std::vector<ShardCore*>& set,
                                                                   const SleepOptions& options);
  /// Abandons what was not committed.
  ~SleepStage();

  [[nodiscard]] Result<Report> commit();
  void abandon();

private:
  struct Part {
    ShardCore* core = nullptr;
    LivePages live;
    std::unique_ptr<PinningJob> pinning;
  };
  /// The pages of all shards on one device, saved by one thread.
  struct DeviceSave {
    TransferEngine* engine = nullptr;
    std::vector<SaveTask> tasks;
    std::vector<std::size_t> part_of_task;
    Result<SaveReport> saved;
  };

  SleepStage(const SleepOptions& options, Clock& clock);
  Result<void> hold(const std::vector<ShardCore*>& set);
  Result<void> seal_and_quiesce();
  Result<void> quiesce_all();
  Result<void> plan();
  Result<void> reserve_host();
  void add_tasks(Part& part, std::size_t index);
  Result<void> copy();
  void take_over(const DeviceSave& save);
  Result<void> check_unchanged();
  void note_step(const char* name, TimePoint begin, Bytes bytes = Bytes());

  SleepOptions options_;
  Clock& clock_;
  HeldSet held_;
  std::vector<Part> parts_;                        // awake before: sealed, then staged
  std::vector<ShardCore*> asleep_;                 // were asleep already
  std::vector<std::vector<BlockLiveRanges>> told_; // by part
  std::vector<DeviceSave> saves_;
  Report report_;
  TimePoint begin_;
  bool over_ = false; // committed or abandoned
};

} // namespace stillwake
