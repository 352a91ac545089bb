// SPDX-License-Identifier: Apache-2.0
#include "allocator/transfer/restore.h"

#include "allocator/transfer/nvtx_range.h"

#include <algorithm>

namespace stillwake {
namespace {

// However large the chunks are, the first one is ready within a few milliseconds.
constexpr std::size_t kLargestFirstChunk = 128;
// A chunk is five operations of one stream, and a device takes about a thousand before the caller has to wait for room.
constexpr std::size_t kMostChunks = 160;

bool is_verified(const RestoreTask& task) { return task.expected.has_value(); }

} // namespace

Result<std::unique_ptr<RestoreJob>> Restore::begin(const RestoreTools& tools, std::vector<RestoreTask> tasks,
                                                   Bytes chunk) {
  if (chunk < kPageBytes) {
    return failure(ErrorCode::kInvalidArgument,
                   "a chunk of " + exact(chunk) + " holds no page; give at least " + exact(kPageBytes));
  }
  std::unique_ptr<Restore> job(new Restore(tools, std::move(tasks), chunk));
  STILLWAKE_TRY(job->take_scratch());
  return std::unique_ptr<RestoreJob>(std::move(job));
}

Restore::Restore(const RestoreTools& tools, std::vector<RestoreTask> tasks, Bytes chunk)
    : tools_(tools), tasks_(std::move(tasks)), task_count_(tasks_.size()),
      first_chunk_tasks_(std::min(pages_below(chunk).index(), kLargestFirstChunk)),
      chunk_tasks_(std::max(pages_below(chunk).index(), (task_count_ + kMostChunks - 1) / kMostChunks)),
      started_(tools.device.table().clock->now()) {}

Restore::~Restore() {
  if (driver_is_out_of_reach()) {
    return;
  }
  if (queued_ > 0 && !is_known_done(queued_ - 1)) {
    if (const Result<void> waited = ready_[queued_ - 1].synchronize(); !waited) {
      // The event may be at fault alone: the streams say for sure.
      const Result<void> idle = drain(tools_.device, {tools_.lanes.in.get(), tools_.lanes.in_hash.get()});
      if (!idle) {
        tools_.device.table().log(LogLevel::kError, idle.error().describe().c_str());
      }
    }
  }
  tools_.events.give_back(std::move(ready_));
  tools_.digests.give_back(std::move(digests_));
}

std::size_t Restore::chunk_of(std::size_t task) const {
  STILLWAKE_CHECK_LT(task, task_count_);
  return task < first_chunk_tasks_ ? 0 : 1 + (task - first_chunk_tasks_) / chunk_tasks_;
}

Result<void> Restore::take_scratch() {
  if (task_count_ == 0) {
    return {};
  }
  Result<std::vector<OwnedEvent>> events = tools_.events.take(chunk_of(task_count_ - 1) + 1);
  STILLWAKE_TRY(events);
  ready_ = std::move(*events);
  const auto verified = static_cast<std::size_t>(std::count_if(tasks_.begin(), tasks_.end(), is_verified));
  if (tools_.hasher.has_kernels() && verified != 0) {
    Result<PinnedBuffer> digests = tools_.digests.take(verified);
    STILLWAKE_TRY(digests);
    digests_ = std::move(*digests);
  }
  return {};
}

Result<void> Restore::queue(std::size_t most) {
  const NvtxRange nvtx("stillwake: restore");
  const RankedLock lock(tools_.queueing);
  STILLWAKE_ENTER(tools_.device);
  for (; most > 0 && !is_queued(); --most) {
    if (Result<void> queued = queue_chunk(queued_); !queued) {
      Error error =
          drained_error(tools_.device, {tools_.lanes.in.get(), tools_.lanes.in_hash.get()}, std::move(queued).error());
      note_done(chunks()); // nothing left to wait for
      return failure(std::move(error));
    }
    ++queued_;
  }
  return {};
}

Result<void> Restore::queue_chunk(std::size_t chunk) {
  const std::size_t first = chunk == 0 ? 0 : first_chunk_tasks_ + (chunk - 1) * chunk_tasks_;
  const std::size_t end = std::min(task_count_, first_chunk_tasks_ + chunk * chunk_tasks_);
  DriverTable& table = tools_.device.table();
  const Stream in = tools_.lanes.in.get();
  const Stream hash = tools_.lanes.in_hash.get();
  const Bytes before = copied_;
  STILLWAKE_TRY(queue_moves(first, end));
  if (copied_ != before) {
    STILLWAKE_TRY(STILLWAKE_CALL(table, "marking the end of a chunk's copies", cuEventRecord, tools_.copied.get(), in));
    STILLWAKE_TRY(
        STILLWAKE_CALL(table, "waiting for a chunk's copies", cuStreamWaitEvent, hash, tools_.copied.get(), 0u));
  }
  if (digests_) {
    STILLWAKE_TRY(queue_digests(first, end));
  }
  return STILLWAKE_CALL(table, "marking a chunk as ready", cuEventRecord, ready_[chunk].get(), hash);
}

// Clears go to the second stream: they need no bus, and their order among the copies does not matter.
Result<void> Restore::queue_moves(std::size_t first, std::size_t end) {
  PageRanges copies([this](const TransferRange& range) { return queue_copy(range); });
  PageRanges clears([this](const TransferRange& range) { return queue_clear(range); });
  for (std::size_t i = first; i < end; ++i) {
    const RestoreTask& task = tasks_[i];
    if (task.encoding == PageEncoding::kRaw) {
      STILLWAKE_CHECK_NE(task.host, static_cast<const std::byte*>(nullptr));
      STILLWAKE_TRY(copies.add(task.device, const_cast<std::byte*>(task.host), task.piece, i));
    } else {
      STILLWAKE_TRY(clears.add(task.device, nullptr, 0, i));
    }
  }
  STILLWAKE_TRY(copies.flush());
  return clears.flush();
}

Result<void> Restore::queue_copy(const TransferRange& range) {
  copied_ += range.bytes();
  ++copies_;
  return STILLWAKE_CALL(tools_.device.table(), "copying pages in", cuMemcpyHtoDAsync, range.device.value(), range.host,
                        range.bytes().size(), tools_.lanes.in.get());
}

Result<void> Restore::queue_clear(const TransferRange& range) {
  return STILLWAKE_CALL(tools_.device.table(), "clearing pages", cuMemsetD8Async, range.device.value(), 0,
                        range.bytes().size(), tools_.lanes.in_hash.get());
}

Result<void> Restore::queue_digests(std::size_t first, std::size_t end) {
  std::vector<DeviceAddress> pages;
  pages.reserve(end - first);
  for (std::size_t i = first; i < end; ++i) {
    if (is_verified(tasks_[i])) {
      pages.push_back(tasks_[i].device);
    }
  }
  PageDigest* digests = reinterpret_cast<PageDigest*>(digests_.data()) + digests_queued_;
  digests_queued_ += pages.size();
  return tools_.hasher.queue(tools_.lanes.in_hash.get(), PageHasher::Scratch::kRestore, pages, digests);
}

Result<void> Restore::check_chunk(std::size_t chunk) const {
  STILLWAKE_CHECK(is_queued()); // an event that was never recorded makes nobody wait
  if (chunk < ready_.size()) {
    return {};
  }
  return failure(ErrorCode::kInvalidArgument, "there is no chunk " + std::to_string(chunk) + "; the wake has " +
                                                  std::to_string(ready_.size()) + ", counted from 0");
}

void Restore::note_done(std::size_t chunks) {
  std::size_t known = known_done_.load(std::memory_order_relaxed);
  while (known < chunks && !known_done_.compare_exchange_weak(known, chunks, std::memory_order_release)) {}
}

Result<void> Restore::make_wait(Stream stream, std::size_t chunk) {
  STILLWAKE_TRY(check_chunk(chunk));
  if (is_known_done(chunk)) {
    return {};
  }
  STILLWAKE_ENTER(tools_.device);
  DriverTable& table = tools_.device.table();
  // Asked before anything else: to query an event while a capture runs would break the capture.
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = table.cuStreamIsCapturing(stream, &capture);
  // The legacy stream answers with this error while another stream captures.
  if (asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return failure(ErrorCode::kBusy, "stream " + hexadecimal(stream) +
                                         " is capturing, and would record the wait for the wake; wait before the "
                                         "capture begins");
  }
  STILLWAKE_TRY(check_call(table, CallId::cuStreamIsCapturing, asked, "asking whether a stream is capturing"));
  return STILLWAKE_CALL(table, "making a stream wait for a wake", cuStreamWaitEvent, stream, ready_[chunk].get(), 0u);
}

Result<bool> Restore::is_done(std::size_t chunk) {
  STILLWAKE_TRY(check_chunk(chunk));
  if (is_known_done(chunk)) {
    return true;
  }
  Result<bool> done = ready_[chunk].done();
  if (done && *done) {
    note_done(chunk + 1);
  }
  return done;
}

Result<std::vector<std::size_t>> Restore::finish() {
  const RankedLock lock(mutex_);
  if (finished_) {
    return wrong_;
  }
  STILLWAKE_CHECK(is_queued());
  if (!ready_.empty()) {
    STILLWAKE_TRY(ready_.back().synchronize());
  }
  wrong_ = compare();
  tasks_ = {};
  finished_ = true;
  note_done(ready_.size());
  took_.store(tools_.device.table().clock->now() - started_);
  return wrong_;
}

std::vector<std::size_t> Restore::compare() const {
  std::vector<std::size_t> wrong;
  if (!digests_) {
    return wrong;
  }
  const auto* found = reinterpret_cast<const PageDigest*>(digests_.data());
  for (std::size_t i = 0; i < task_count_; ++i) {
    if (is_verified(tasks_[i]) && *found++ != *tasks_[i].expected) {
      wrong.push_back(i);
    }
  }
  return wrong;
}

} // namespace stillwake
