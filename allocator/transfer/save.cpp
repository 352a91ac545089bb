// SPDX-License-Identifier: Apache-2.0
#include "allocator/transfer/save.h"

#include "allocator/transfer/nvtx_range.h"

#include <algorithm>
#include <utility>

namespace stillwake {

namespace {

// The first batch is small, so that the bus starts at once; each is four times the one before, and so is hashed long
// before the one before is copied.
constexpr std::size_t kFirstBatch = 32;
constexpr std::size_t kGrowth = 4;

// Whether there is a backing with a digest to compare with, and the host copy may stay as it is encoded.
bool has_backing(const SaveTask& task) {
  return task.known && (task.known_encoding == PageEncoding::kRaw ||
                        (task.known_encoding == PageEncoding::kZero && task.may_elide_zero));
}

void keep_backing(SaveTask& task) {
  task.encoding = task.known_encoding;
  task.digest = task.known;
}

} // namespace

Result<SaveScratch> SaveScratch::create(Device& device) {
  SaveScratch scratch;
  for (Batch& batch : scratch.batch) {
    Result<PinnedBuffer> digests = PinnedBuffer::create(device, Bytes(kLargestBatch.count() * sizeof(PageDigest)));
    STILLWAKE_TRY(digests);
    batch.digests = std::move(*digests);
    Result<OwnedEvent> known = OwnedEvent::create(device);
    STILLWAKE_TRY(known);
    batch.known = std::move(*known);
  }
  return scratch;
}

Save::Save(Device& device, PageHasher& hasher, TransferLanes& lanes, SaveScratch& scratch, std::span<SaveTask> tasks)
    : device_(device), hasher_(hasher), lanes_(lanes), scratch_(scratch), tasks_(tasks) {}

Result<SaveReport> Save::run() {
  const NvtxRange range("stillwake: save");
  find_due();
  if (due_.empty()) {
    return report_;
  }
  Result<void> done = run_to_the_end();
  if (!done) {
    return failure(drained_error(device_, {lanes_.save_hash.get(), lanes_.out.get()}, std::move(done).error()));
  }
  return report_;
}

void Save::find_due() {
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    SaveTask& task = tasks_[i];
    task.encoding = PageEncoding::kNone;
    task.digest.reset();
    task.copied = false;
    if (task.trusted && has_backing(task)) {
      keep_backing(task);
      ++report_.pages_unchanged;
    } else {
      due_.push_back(i);
      addresses_.push_back(task.device);
    }
  }
}

Result<void> Save::run_to_the_end() {
  STILLWAKE_ENTER(device_);
  Clock& clock = *device_.table().clock;
  if (!hasher_.has_kernels()) {
    for (const std::size_t index : due_) {
      decide(tasks_[index], nullptr);
    }
    STILLWAKE_TRY(queue_copies({0, due_.size()}));
  } else {
    first_launch_ = clock.now();
    STILLWAKE_TRY(hash_next());
    for (std::size_t number = 0; number < batches_.size(); ++number) {
      STILLWAKE_TRY(hash_next());
      STILLWAKE_TRY(wait_for_digests(number));
      STILLWAKE_TRY(queue_copies(batches_[number]));
    }
  }
  STILLWAKE_TRY(copy_behind_pins());
  STILLWAKE_TRY(
      STILLWAKE_CALL(device_.table(), "waiting for the last copy out", cuStreamSynchronize, lanes_.out.get()));
  if (report_.copies != 0) {
    report_.copying = clock.now() - first_copy_;
  }
  return {};
}

Result<void> Save::hash_next() {
  const Batch last = batches_.empty() ? Batch{} : batches_.back();
  const std::size_t first = last.first + last.count;
  if (first == due_.size()) {
    return {};
  }
  const std::size_t wanted =
      std::min<std::size_t>(last.count == 0 ? kFirstBatch : last.count * kGrowth, SaveScratch::kLargestBatch.count());
  const Batch batch{first, std::min(wanted, due_.size() - first)};
  const std::size_t slot = batches_.size() % SaveScratch::kBatches;
  const NvtxRange range("stillwake: hash");
  const std::span<const DeviceAddress> pages(addresses_);
  STILLWAKE_TRY(hasher_.queue(lanes_.save_hash.get(), PageHasher::Scratch::kSave,
                              pages.subspan(batch.first, batch.count), scratch_.digests(slot)));
  STILLWAKE_TRY(scratch_.batch[slot].known.record(lanes_.save_hash.get()));
  batches_.push_back(batch);
  return {};
}

Result<void> Save::wait_for_digests(std::size_t number) {
  const Batch& batch = batches_[number];
  const std::size_t slot = number % SaveScratch::kBatches;
  STILLWAKE_TRY(scratch_.batch[slot].known.synchronize());
  if (number + 1 == batches_.size()) {
    report_.hashing = device_.table().clock->now() - first_launch_;
  }
  const PageDigest* digests = scratch_.digests(slot);
  for (std::size_t i = 0; i < batch.count; ++i) {
    decide(tasks_[due_[batch.first + i]], &digests[i]);
  }
  return {};
}

void Save::decide(SaveTask& task, const PageDigest* digest) {
  if (digest != nullptr && has_backing(task) && *digest == *task.known) {
    keep_backing(task);
    ++report_.pages_unchanged;
    return;
  }
  if (digest != nullptr) {
    task.digest = *digest;
  }
  if (digest != nullptr && digest->is_zero() && task.may_elide_zero) {
    task.encoding = PageEncoding::kZero;
    ++report_.pages_zero;
    return;
  }
  task.encoding = PageEncoding::kRaw;
  task.copied = true; // before its copy is queued: from here on an error leaves the backing undefined
}

Result<void> Save::queue_copies(const Batch& batch) {
  const NvtxRange nvtx("stillwake: copy out");
  PageRanges ranges([this](const TransferRange& range) -> Result<void> {
    if (tasks_[range.first_task].pinning == nullptr) {
      return queue_copy(range);
    }
    waiting_.push_back({range}); // once all is decided: the thread that pins the piece queues it
    return {};
  });
  for (std::size_t i = batch.first; i < batch.first + batch.count; ++i) {
    SaveTask& task = tasks_[due_[i]];
    if (task.copied) {
      STILLWAKE_CHECK_NE(task.host, static_cast<std::byte*>(nullptr));
      STILLWAKE_TRY(ranges.add(task.device, task.host, task.piece, due_[i]));
    }
  }
  return ranges.flush();
}

Result<void> Save::queue_copy(const TransferRange& range) {
  {
    RankedLock lock(mutex_);
    if (report_.copies == 0) {
      first_copy_ = device_.table().clock->now();
    }
    ++report_.copies;
    report_.copied += range.bytes();
    report_.pages_copied += range.pages;
  }
  return STILLWAKE_CALL(device_.table(), "copying pages out", cuMemcpyDtoHAsync, range.host, range.device.value(),
                        range.bytes().size(), lanes_.out.get());
}

Result<void> Save::copy_behind_pins() {
  std::vector<PinningJob*> jobs;
  for (const Waiting& waiting : waiting_) {
    PinningJob* job = tasks_[waiting.range.first_task].pinning;
    if (std::find(jobs.begin(), jobs.end(), job) == jobs.end()) {
      jobs.push_back(job);
    }
  }
  Cleanup quiet([&] {
    for (PinningJob* job : jobs) {
      job->tell(nullptr);
    }
  });
  for (PinningJob* job : jobs) {
    job->tell(this);
  }
  const SaveTask* last = nullptr; // of the piece waited for last
  for (std::size_t at = 0; at < waiting_.size(); ++at) {
    const SaveTask& task = tasks_[waiting_[at].range.first_task];
    if (last == nullptr || last->pinning != task.pinning || last->piece != task.piece) {
      STILLWAKE_TRY(task.pinning->wait_for(task.page));
      last = &task;
    }
    STILLWAKE_TRY(queue_once(at));
  }
  RankedLock lock(mutex_);
  return sink_error_ ? Result<void>(failure(*sink_error_)) : Result<void>();
}

void Save::pinned(PinningJob& job, PageRange piece) {
  const auto queued = [&]() -> Result<void> {
    STILLWAKE_ENTER(device_);
    for (std::size_t at = 0; at < waiting_.size(); ++at) {
      const SaveTask& task = tasks_[waiting_[at].range.first_task];
      if (task.pinning == &job && piece.contains(task.page)) {
        STILLWAKE_TRY(queue_once(at));
      }
    }
    return {};
  }();
  if (!queued) {
    RankedLock lock(mutex_);
    sink_error_ = queued.error();
  }
}

Result<void> Save::queue_once(std::size_t at) {
  RankedLock lock(mutex_);
  if (std::exchange(waiting_[at].queued, true)) {
    return {};
  }
  lock.unlock();
  return queue_copy(waiting_[at].range);
}

} // namespace stillwake
