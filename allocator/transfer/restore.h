// SPDX-License-Identifier: Apache-2.0
// A Restore is the job that an engine's restore gives out: what is on its way in, and how to wait for it. Copies go to
// one stream; clears, digests and readiness events to a second one that waits for each chunk's copies, so that the bus
// never waits for a kernel. Both streams are shared by all jobs of the engine: jobs end in the order they were queued.
//
// A Restore is: begun -> queued as a whole (asking may call the driver) -> finished (every answer is known). It never
// goes back.
#pragma once

#include "allocator/transfer/digest_pool.h"
#include "allocator/transfer/event_pool.h"
#include "allocator/transfer/page_hasher.h"
#include "allocator/transfer/page_ranges.h"
#include "allocator/transfer/transfer_engine.h"
#include "allocator/transfer/transfer_lanes.h"

#include <atomic>

namespace stillwake {

/// What restores of an engine share.
struct RestoreTools {
  Device& device;
  PageHasher& hasher;
  TransferLanes& lanes;
  EventPool& events;
  DigestPool& digests;
  RankedMutex& queueing;    ///< held while chunks are queued; guards `copied`
  const OwnedEvent& copied; ///< recorded anew for each chunk: a stream's wait holds to the record that it found
};

class Restore final : public RestoreJob {
public:
  [[nodiscard]] static Result<std::unique_ptr<RestoreJob>> begin(const RestoreTools& tools,
                                                                 std::vector<RestoreTask> tasks, Bytes chunk);
  ~Restore() override;

  Result<void> queue(std::size_t most) override;
  std::size_t chunks() const override { return ready_.size(); }
  std::size_t chunk_of(std::size_t task) const override;
  Result<void> make_wait(Stream stream, std::size_t chunk) override;
  Result<bool> is_done(std::size_t chunk) override;
  Result<std::vector<std::size_t>> finish() override;
  Bytes copied() const override { return copied_; }
  std::uint64_t copies() const override { return copies_; }
  Duration took() const override { return took_.load(); }

private:
  Restore(const RestoreTools& tools, std::vector<RestoreTask> tasks, Bytes chunk);
  [[nodiscard]] Result<void> take_scratch();
  [[nodiscard]] Result<void> queue_chunk(std::size_t chunk);
  bool is_queued() const { return queued_ == ready_.size(); }
  [[nodiscard]] Result<void> queue_moves(std::size_t first, std::size_t end);
  [[nodiscard]] Result<void> queue_copy(const TransferRange& range);
  [[nodiscard]] Result<void> queue_clear(const TransferRange& range);
  [[nodiscard]] Result<void> queue_digests(std::size_t first, std::size_t end);
  [[nodiscard]] Result<void> check_chunk(std::size_t chunk) const;
  bool is_known_done(std::size_t chunk) const { return chunk < known_done_.load(std::memory_order_acquire); }
  void note_done(std::size_t chunks);
  std::vector<std::size_t> compare() const;

  RestoreTools tools_;
  std::vector<RestoreTask> tasks_; // empty once finished
  const std::size_t task_count_;
  const std::size_t first_chunk_tasks_;
  const std::size_t chunk_tasks_;
  std::vector<OwnedEvent> ready_; // one a chunk
  PinnedBuffer digests_;          // of the tasks with an expected digest, in order; empty without kernels
  std::size_t queued_ = 0;        // chunks
  std::size_t digests_queued_ = 0;
  Bytes copied_;
  std::uint64_t copies_ = 0;
  TimePoint started_;
  std::atomic<std::size_t> known_done_{0}; // so many chunks from the first are restored
  std::atomic<Duration> took_{Duration(0)};
  RankedMutex mutex_{LockRank::kTransfer};
  bool finished_ = false;          // guarded by mutex_
  std::vector<std::size_t> wrong_; // guarded by mutex_
};

} // namespace stillwake
