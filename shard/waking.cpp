// SPDX-License-Identifier: Apache-2.0
#include "shard/waking.h"

#include "shard/quiesce.h"

#include <algorithm>

namespace stillwake {

Result<void> ShardPlace::check_range(DeviceAddress address, Bytes length) const {
  if (length == Bytes(0) || length > size - (address - base)) {
    return failure(ErrorCode::kInvalidArgument, "a range of " + std::to_string(length.count()) + " bytes " +
                                                    (length == Bytes(0) ? "in" : "that does not end within") +
                                                    " shard '" + name +
                                                    "'; give a range of 1 byte or more of one woken block");
  }
  return {};
}

Waking::Waking(std::vector<WakingShard> shards, std::vector<ShardPlace> ready, std::vector<WakingJob> jobs,
               Report report, TimePoint begin, TimePoint restoring, Clock& clock)
    : shards_(std::move(shards)), ready_(std::move(ready)), jobs_(std::move(jobs)), report_(std::move(report)),
      begin_(begin), restoring_(restoring), clock_(clock) {}

Result<void> Waking::wait_chunk(WakingJob& job, Stream stream, std::size_t chunk) {
  if (job.restore == nullptr) {
    return {};
  }
  return job.restore->make_wait(stream, chunk);
}

namespace {

constexpr const char* kAsking = "waiting for a wake";

Result<void> refuse_foreign(bool may_use, Stream stream) {
  if (may_use) {
    return {};
  }
  return failure(ErrorCode::kInvalidArgument,
                 std::string(kAsking) + ": stream " + hexadecimal(stream) +
                     " belongs to another device than what it is to wait for; give one of the shard's device");
}

} // namespace

Result<void> Waking::wait_all(Stream stream) {
  RankedLock lock(mutex_);
  if (settled_) {
    return {};
  }
  bool may_use = shards_.empty();
  for (const WakingShard& shard : shards_) {
    auto here = shard.core->may_be_used_on(stream, kAsking);
    STILLWAKE_TRY(here);
    may_use = may_use || *here;
  }
  STILLWAKE_TRY(refuse_foreign(may_use, stream));
  for (WakingJob& job : jobs_) {
    if (job.restore != nullptr) {
      STILLWAKE_TRY(wait_chunk(job, stream, job.restore->chunks() - 1));
    }
  }
  return {};
}

Result<void> Waking::wait_shard(const ShardCore& core, Stream stream) {
  RankedLock lock(mutex_);
  if (settled_) {
    return {};
  }
  for (WakingShard& shard : shards_) {
    WakingJob& job = jobs_[shard.job];
    if (shard.core == &core && job.restore != nullptr) {
      return wait_chunk(job, stream, job.restore->chunks() - 1);
    }
  }
  return {};
}

Result<void> Waking::wait_range(Stream stream, DeviceAddress address, Bytes size) {
  RankedLock lock(mutex_);
  for (WakingShard& shard : shards_) {
    if (!shard.contains(address)) {
      continue;
    }
    STILLWAKE_TRY(shard.check_range(address, size));
    const Bytes offset = address - shard.base;
    if (settled_ || jobs_[shard.job].restore == nullptr) {
      return {}; // once it is settled there are no jobs any more
    }
    WakingJob& job = jobs_[shard.job];
    auto may_use = shard.core->may_be_used_on(stream, kAsking);
    STILLWAKE_TRY(may_use);
    STILLWAKE_TRY(refuse_foreign(*may_use, stream));
    std::optional<std::size_t> chunk;
    const Pages end = pages_holding(offset + size);
    for (Pages page = pages_below(offset); page < end; ++page) {
      const std::uint32_t task = page.index() < shard.task_of_page.size() ? shard.task_of_page[page.index()] : kNoTask;
      if (task != kNoTask) {
        chunk = std::max(chunk.value_or(0), job.restore->chunk_of(task));
      }
    }
    return chunk ? wait_chunk(job, stream, *chunk) : Result<void>();
  }
  for (const ShardPlace& shard : ready_) {
    if (shard.contains(address)) {
      return shard.check_range(address, size);
    }
  }
  return failure(ErrorCode::kInvalidArgument,
                 "address " + hexadecimal(address) + " lies in no shard that this ticket wakes");
}

bool Waking::is_done() {
  if (done_) {
    return true;
  }
  RankedLock lock(mutex_);
  if (settled_) {
    return true;
  }
  for (WakingJob& job : jobs_) {
    if (job.restore == nullptr) {
      continue;
    }
    auto done = job.restore->is_done(job.restore->chunks() - 1);
    if (done && !*done) {
      return false;
    }
  }
  done_ = true;
  return true;
}

void Waking::poll() {
  if (is_done()) {
    RankedLock lock(mutex_);
    (void)settle(); // what went wrong is told by whoever asks for the result
  }
}

// Waits with no lock held: who only asks meanwhile is answered at once.
Result<void> Waking::wait_for_jobs() {
  std::vector<std::shared_ptr<RestoreJob>> restores;
  {
    const RankedLock lock(mutex_);
    for (const WakingJob& job : jobs_) {
      if (job.restore != nullptr) {
        restores.push_back(job.restore);
      }
    }
  }
  for (const auto& restore : restores) {
    if (auto finished = restore->finish(); !finished && finished.error().code != ErrorCode::kLost) {
      return failure(std::move(finished).error());
    }
  }
  return {};
}

Result<Report> Waking::result() {
  STILLWAKE_TRY(wait_for_jobs());
  RankedLock lock(mutex_);
  STILLWAKE_TRY(settle());
  if (error_) {
    return failure(*error_);
  }
  return report_;
}

void Waking::give_up() {
  RankedLock lock(mutex_);
  if (!settle()) {
    error_ = Error{ErrorCode::kLost, 0, "", "a shard was destroyed before the verdict of its wake could be known"};
    conclude(std::vector<std::vector<Pages>>(shards_.size()), false, true);
  }
}

Result<void> Waking::settle() {
  if (settled_) {
    return {};
  }
  bool verified = true;
  std::vector<std::vector<Pages>> mismatched(shards_.size());
  for (WakingJob& job : jobs_) {
    if (job.restore == nullptr) {
      continue;
    }
    auto finished = job.restore->finish();
    if (!finished && finished.error().code != ErrorCode::kLost) {
      return failure(std::move(finished).error());
    }
    if (!finished) {
      error_ = std::move(finished).error();
      continue;
    }
    verified = verified && shards_[job.owners.front().shard].core->engine().has_kernels();
    for (std::size_t task : *finished) {
      mismatched[job.owners[task].shard].push_back(job.owners[task].page);
    }
  }
  conclude(mismatched, verified, error_.has_value());
  return {};
}

void Waking::conclude(const std::vector<std::vector<Pages>>& mismatched, bool verified, bool lost) {
  settled_ = true;
  report_.verified = report_.verified && verified;
  const TimePoint end = clock_.now();
  report_.took = end - begin_;
  if (!report_.steps.empty()) {
    report_.steps.back().took = end - restoring_;
  }
  report_.host_pinned = Bytes();
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    settle_shard(shards_[i], mismatched[i], lost);
  }
  jobs_.clear();
  done_ = true;
}

void Waking::settle_shard(WakingShard& shard, const std::vector<Pages>& mismatched, bool lost) {
  ShardCore& core = *shard.core;
  shard.core = nullptr;
  if (lost) {
    core.set_state(ShardState::kLost);
  } else if (!mismatched.empty()) {
    core.set_state(ShardState::kCorrupted);
    std::string pages;
    for (std::size_t i = 0; i < mismatched.size() && i < 8; ++i) {
      pages += (i == 0 ? "" : ", ") + std::to_string(mismatched[i].count());
    }
    Error error;
    error.code = ErrorCode::kCorrupted;
    error.message = "shard '" + shard.name + "' woke with " + std::to_string(mismatched.size()) +
                    " pages that are not what was saved (2 MiB pages " + pages +
                    (mismatched.size() > 8 ? ", ..." : "") + " of its reservation); its backing is kept";
    core.device().table().log(LogLevel::kError, error.describe().c_str());
    error_ = error;
  } else {
    core.finish_wake(shard.kept);
  }
  report_.host_pinned += core.mirror().pinned();
  // In this order: whoever sees the shard awake finds this wake until all of it is over, and waits for that.
  core.end_transition();
  core.forget_waking(*this);
}

} // namespace stillwake
