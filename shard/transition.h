// SPDX-License-Identifier: Apache-2.0
// sleep, wake and swap of a set of shards: all of it or nothing. Their halves, stage and commit, are public, so that
// the ranks of a group can vote between them.
//
// From the call until sleep returns the caller launches nothing on the set; shards that belong to a running capture are
// refused where that can be known. One transition a shard at a time: another thread's answers kBusy. A set may span
// devices.
#pragma once

#include "../allocator/base/kept_at_exit.h"
#include "shard.h"
#include "ticket.h"

#include <memory>
#include <vector>

namespace stillwake {

class SleepStage;
class WakeStage;

/// Shards in the order in which they are restored. Each at most once, none null, all of one driver; else
/// kInvalidArgument. So are options that cannot be (a timeout below zero, a range in WakeOptions::first outside of the
/// set): they are asked first, and nothing has changed.
using ShardSet = std::vector<Shard*>;

/// Returns when the device memory is free. Shards that sleep already are left alone (frees that failed before are tried
/// again) and counted in the report. Errors: kBusy (a transition, a capture, or in checked mode a write meanwhile),
/// kTimedOut, kOverBudget, kOutOfHostMemory, kCorrupted, kLost, kDriverCallFailed. After an error everything is as it
/// was, awake and unharmed; after kLost no shard of that device can be used.
[[nodiscard]] Result<Report> sleep(const ShardSet& set, const SleepOptions& options = {});
/// Every shard of the driver.
[[nodiscard]] Result<Report> sleep(Driver& driver, const SleepOptions& options = {});

/// Blocks until everything is restored and verified: safe for every stream. Shards that are awake are left alone; one
/// that is waking is waited for. Errors: kOutOfDeviceMemory (needed, free and largest possible bytes), kTimedOut,
/// kBusy, kDriverCallFailed: everything still asleep, host copies untouched; or, where a driver call failed after the
/// copies were on their way, waking: the same call again waits for them and tells the verdict. kCorrupted: see
/// Ticket::result. kLost: no shard of that device can be used.
[[nodiscard]] Result<Report> wake(const ShardSet& set, const WakeOptions& options = {});
[[nodiscard]] Result<Report> wake(Driver& driver, const WakeOptions& options = {});
/// Returns when the copies are on their way; the named streams wait for all of it by themselves, others through the
/// ticket.
[[nodiscard]] Result<Ticket> wake(const ShardSet& set, const std::vector<Stream>& streams,
                                  const WakeOptions& options = {});

/// Puts `outgoing` to sleep while waking `incoming`, both directions of the bus at once, within the memory of the
/// larger plus 512 MiB. All shards on one device each pair; handles move from set to set. Blocks until verified.
///
/// The options do what they do in a sleep and in a wake. `checked`: all of `outgoing` is saved, waited for and hashed
/// again before its first page leaves, so the two directions do not overlap; a difference is kBusy. `first`: these
/// ranges of `incoming` get memory and content first, a block on one handle as a whole. WakeOptions::timeout: how long
/// memory beyond what `outgoing` leaves is waited for, both sets held as they were; then kTimedOut. Owners are asked
/// once for such memory before the swap fails for lack of it.
///
/// Errors: those of sleep and wake. After one, `outgoing` is awake with its content and `incoming` asleep with its
/// backing. A kDiscard shard of `outgoing` is awake as well: pages that had left already are zeros, the others hold
/// what they held. Should a page that had left not come back, its shard (no other) is kCorrupted: the error has that
/// code and names it, its backing is kept, and some of its addresses may have no memory. kLost: no shard of that device
/// can be used.
[[nodiscard]] Result<Report> swap(const ShardSet& outgoing, const ShardSet& incoming,
                                  const SleepOptions& sleep_options = {}, const WakeOptions& wake_options = {});

/// The first half of a sleep: everything that can fail and be undone. Destroying it without commit undoes it. After it
/// was moved from, `commit` answers kInvalidArgument and `abandon` does nothing.
class StagedSleep {
public:
  explicit StagedSleep(std::unique_ptr<SleepStage> stage);
  StagedSleep(StagedSleep&&) noexcept;
  StagedSleep& operator=(StagedSleep&&) noexcept;
  ~StagedSleep();

  /// Unmaps and releases. The first successful unmap is the point of no return; an error before it leaves all awake.
  [[nodiscard]] Result<Report> commit();
  /// Back to awake; nothing has happened. In a child made by fork it does nothing.
  void abandon();

private:
  Result<void> check_usable() const;
  KeptAtExit<SleepStage> stage_;
};
[[nodiscard]] Result<StagedSleep> stage_sleep(const ShardSet& set, const SleepOptions& options = {});

/// The first half of a wake: new pages mapped at the old addresses, nothing restored. Destroying it without commit
/// undoes it. After it was moved from as StagedSleep.
class StagedWake {
public:
  explicit StagedWake(std::unique_ptr<WakeStage> stage);
  StagedWake(StagedWake&&) noexcept;
  StagedWake& operator=(StagedWake&&) noexcept;
  ~StagedWake();

  /// Starts to restore; `streams` wait for all of it.
  [[nodiscard]] Result<Ticket> commit(const std::vector<Stream>& streams = {});
  /// Back to asleep; the backing was not touched. In a child made by fork it does nothing.
  void abandon();

private:
  Result<void> check_usable() const;
  KeptAtExit<WakeStage> stage_;
};
[[nodiscard]] Result<StagedWake> stage_wake(const ShardSet& set, const WakeOptions& options = {});

} // namespace stillwake
