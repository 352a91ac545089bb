// SPDX-License-Identifier: Apache-2.0
// A Save is one pass out: batches of pages are hashed ahead, their digests decide, and what must be kept is copied
// while the next batches are hashed. Two batches are in flight, so neither the bus nor the hash waits for the host.
#pragma once

#include "allocator/host/host.h"
#include "allocator/transfer/page_hasher.h"
#include "allocator/transfer/page_ranges.h"
#include "allocator/transfer/transfer_engine.h"
#include "allocator/transfer/transfer_lanes.h"

#include <array>
#include <optional>
#include <vector>

namespace stillwake {

/// What saves of an engine use in turn.
struct SaveScratch {
  static constexpr std::size_t kBatches = 2;  ///< in flight
  static constexpr Pages kLargestBatch{1024}; ///< 2 GiB: half a millisecond of hashing, 40 of copying
  struct Batch {
    PinnedBuffer digests;
    OwnedEvent known; ///< recorded when the digests have arrived
  };
  std::array<Batch, kBatches> batch;

  [[nodiscard]] static Result<SaveScratch> create(Device& device);
  PageDigest* digests(std::size_t which) const { return reinterpret_cast<PageDigest*>(batch[which].digests.data()); }
};

class Save final : private PinnedSink {
public:
  Save(Device& device, PageHasher& hasher, TransferLanes& lanes, SaveScratch& scratch, std::span<SaveTask> tasks);

  /// Once. When it returns nothing that it queued is still under way, also after an error.
  [[nodiscard]] Result<SaveReport> run();

private:
  struct Batch {
    std::size_t first = 0; // in due_
    std::size_t count = 0;
  };

  [[nodiscard]] Result<void> run_to_the_end();
  void find_due();
  [[nodiscard]] Result<void> hash_next();
  [[nodiscard]] Result<void> wait_for_digests(std::size_t number);
  void decide(SaveTask& task, const PageDigest* digest);
  [[nodiscard]] Result<void> queue_copies(const Batch& batch);
  [[nodiscard]] Result<void> queue_copy(const TransferRange& range);
  [[nodiscard]] Result<void> copy_behind_pins();
  void pinned(PinningJob& job, PageRange piece) override;
  [[nodiscard]] Result<void> queue_once(std::size_t waiting);

  Device& device_;
  PageHasher& hasher_;
  TransferLanes& lanes_;
  SaveScratch& scratch_;
  std::span<SaveTask> tasks_;
  std::vector<std::size_t> due_;         // indices of tasks that are not taken on trust
  std::vector<DeviceAddress> addresses_; // of the due tasks
  std::vector<Batch> batches_;           // launched so far

  /// A range whose piece may still be on its way.
  struct Waiting {
    TransferRange range;
    bool queued = false;
  };
  std::vector<Waiting> waiting_; // made before the pinning threads are told of it
  RankedMutex mutex_{LockRank::kSave};
  // What follows, and each `queued`, is guarded by mutex_: pinning threads queue copies, too.
  std::optional<Error> sink_error_;
  TimePoint first_launch_;
  TimePoint first_copy_;
  SaveReport report_;
};

} // namespace stillwake
