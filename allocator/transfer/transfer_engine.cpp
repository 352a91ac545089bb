// SPDX-License-Identifier: Apache-2.0
#include "allocator/transfer/transfer_engine.h"

#include "allocator/transfer/restore.h"
#include "allocator/transfer/save.h"

#include <algorithm>

namespace stillwake {
namespace {

// The first wake of 20 GiB finds its digests' room here already.
constexpr Pages kPagesExpected{10240};

} // namespace

class TransferEngine::Impl {
public:
  Impl(Device& owner, std::unique_ptr<PageHasher> kernels) : device(owner), hasher(std::move(kernels)) {}

  /// The rest of what is taken at open.
  Result<void> take_scratch() {
    Result<TransferLanes> made = TransferLanes::create(device);
    STILLWAKE_TRY(made);
    lanes = std::move(*made);
    STILLWAKE_TRY(hasher->prepare(lanes.save_hash));
    Result<SaveScratch> scratch = SaveScratch::create(device);
    STILLWAKE_TRY(scratch);
    save_scratch = std::move(*scratch);
    Result<OwnedEvent> event = OwnedEvent::create(device);
    STILLWAKE_TRY(event);
    chunk_copied = std::move(*event);
    Result<PinnedBuffer> buffer = digests.take(kPagesExpected.index());
    STILLWAKE_TRY(buffer);
    digests.give_back(std::move(*buffer));
    return {};
  }

  Device& device;
  std::unique_ptr<PageHasher> hasher;
  EventPool events{device};
  DigestPool digests{device};
  RankedMutex saving{LockRank::kTransfer};    // held for a whole save; guards save_scratch
  RankedMutex restoring{LockRank::kTransfer}; // held while chunks are queued; guards chunk_copied
  SaveScratch save_scratch;
  OwnedEvent chunk_copied;
  TransferLanes lanes; // gone before the buffers that its work writes to
};

TransferEngine::TransferEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransferEngine::~TransferEngine() = default;

Result<std::unique_ptr<TransferEngine>> TransferEngine::open(Device& device, Emulation* emulation) {
  Result<std::unique_ptr<PageHasher>> hasher = PageHasher::open(device, emulation);
  STILLWAKE_TRY(hasher);
  auto impl = std::make_unique<Impl>(device, std::move(*hasher));
  STILLWAKE_TRY(impl->take_scratch());
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(impl)));
}

Device& TransferEngine::device() const { return impl_->device; }
bool TransferEngine::has_kernels() const { return impl_->hasher->has_kernels(); }
std::uint64_t TransferEngine::seed() const { return impl_->hasher->seed(); }

Result<SaveReport> TransferEngine::save(std::span<SaveTask> tasks) {
  const RankedLock lock(impl_->saving);
  return Save(impl_->device, *impl_->hasher, impl_->lanes, impl_->save_scratch, tasks).run();
}

Result<std::vector<PageDigest>> TransferEngine::digest(std::span<const DeviceAddress> pages) {
  const RankedLock lock(impl_->saving);
  STILLWAKE_ENTER(impl_->device);
  OwnedStream& stream = impl_->lanes.save_hash;
  std::vector<PageDigest> digests;
  digests.reserve(pages.size());
  const PageDigest* found = impl_->save_scratch.digests(0);
  while (!pages.empty()) {
    const auto batch = pages.first(std::min<std::size_t>(pages.size(), SaveScratch::kLargestBatch.count()));
    Result<void> taken =
        impl_->hasher->queue(stream.get(), PageHasher::Scratch::kSave, batch, impl_->save_scratch.digests(0));
    if (taken) {
      taken = stream.synchronize();
    }
    if (!taken) {
      return failure(drained_error(impl_->device, {stream.get()}, std::move(taken).error()));
    }
    digests.insert(digests.end(), found, found + batch.size());
    pages = pages.subspan(batch.size());
  }
  return digests;
}

Result<std::unique_ptr<RestoreJob>> TransferEngine::begin_restore(std::vector<RestoreTask> tasks, Bytes chunk) {
  return Restore::begin({impl_->device, *impl_->hasher, impl_->lanes, impl_->events, impl_->digests, impl_->restoring,
                         impl_->chunk_copied},
                        std::move(tasks), chunk);
}

Result<std::unique_ptr<RestoreJob>> TransferEngine::restore(std::vector<RestoreTask> tasks, Bytes chunk) {
  auto job = begin_restore(std::move(tasks), chunk);
  STILLWAKE_TRY(job);
  STILLWAKE_TRY((*job)->queue((*job)->chunks()));
  return job;
}

} // namespace stillwake
