// SPDX-License-Identifier: Apache-2.0
// A WakeStage is a wake between its halves. `prepare` creates all physical pages of the set and maps them at the old
// addresses: all or nothing, host copies untouched. `commit` starts to restore and answers the Waking. `wake` is both
// in one, where nobody has to agree between them: most pages are created while the first ones are copied.
#pragma once

#include "shard/arrivals.h"
#include "shard/page_supply.h"
#include "shard/shard_set.h"
#include "shard/wake_memory.h"
#include "shard/waking.h"

#include <memory>
#include <set>
#include <vector>

namespace stillwake {

class WakeStage {
public:
  using Part = WakePart;

  /// Holds the set and plans; no memory is taken yet. A swap goes on from here by itself.
  [[nodiscard]] static Result<std::unique_ptr<WakeStage>> begin(const std::vector<ShardCore*>& set,
                                                                const WakeOptions& options);
  [[nodiscard]] static Result<std::unique_ptr<WakeStage>> prepare(const std::vector<ShardCore*>& set,
                                                                  const WakeOptions& options);
  [[nodiscard]] static Result<std::shared_ptr<Waking>>
  wake(const std::vector<ShardCore*>& set, const std::vector<Stream>& streams, const WakeOptions& options);
  ~WakeStage();

  [[nodiscard]] Result<std::shared_ptr<Waking>> commit(const std::vector<Stream>& streams);
  void abandon();

  // For a swap.

  std::vector<Part>& parts() { return parts_; }
  /// What the caller wants first, by part.
  std::vector<WantedPages> wanted_first() const;
  Report& report() { return report_; }
  /// Everything was mapped, restored and verified by the caller: the shards are awake.
  void conclude();

private:
  WakeStage(const WakeOptions& options, Clock& clock);
  Result<void> hold(const std::vector<ShardCore*>& set);
  /// As SleepStage's.
  Result<void> note_loss(Result<void> outcome);
  void plan();
  Result<void> take_and_map();
  Result<void> check_streams(const std::vector<Stream>& streams) const;
  /// Queues the copies. `supplies`, by part, put memory behind them as they are queued; null: all of it is mapped.
  Result<std::vector<WakingJob>> start(std::vector<WakingShard>& shards, std::vector<PageSupply>* supplies);
  Result<void> queue_heads(std::vector<WakingJob>& jobs, std::vector<PageSupply>& supplies);
  Result<std::shared_ptr<Waking>> restore(const std::vector<Stream>& streams);
  Result<std::shared_ptr<Waking>> supply_and_restore(const std::vector<Stream>& streams);
  Result<std::shared_ptr<Waking>> hand_over(std::vector<WakingShard> shards, std::vector<WakingJob> jobs,
                                            const std::vector<Stream>& streams, TimePoint begin);

  WakeOptions options_;
  Clock& clock_;
  HeldSet held_;
  std::vector<Part> parts_;
  std::vector<ShardPlace> ready_; // of shards that were awake already
  std::set<Device*> devices_;     // of the whole set, peers too
  Report report_;
  TimePoint begin_;
  bool over_ = false;
};

} // namespace stillwake
