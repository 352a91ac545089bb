// SPDX-License-Identifier: Apache-2.0
// A Ticket is a wake that is under way: something to wait on, per stream and per address range, and a verdict.
// It may be copied and may outlive the shards: what it held is then over.
#pragma once

#include "../allocator/base/result.h"
#include "report.h"

#include <memory>

namespace stillwake {

class Waking;

/// After it was moved from, a Ticket may be destroyed and assigned to; calls that answer a Result say kInvalidArgument,
/// and `is_done` ends the process with a sentence.
class Ticket {
public:
  explicit Ticket(std::shared_ptr<Waking> waking) : waking_(std::move(waking)) {}

  /// Makes the stream wait until everything is restored; the host does not wait. Nothing once it is done.
  /// Errors: kBusy (the stream is capturing), kInvalidArgument (a stream of a device that has no access to what is
  /// woken), kLost.
  [[nodiscard]] Result<void> wait(Stream stream);
  /// The same for one range of device addresses in a shard of the woken set. One that was awake already is ready, so
  /// nothing happens for its ranges. kInvalidArgument for a range outside of the set.
  [[nodiscard]] Result<void> wait(Stream stream, const void* pointer, Bytes size);

  /// Whether `result` has nothing to wait for any more, without waiting: everything is restored, or never will be
  /// (where `result` says kLost).
  bool is_done() const;
  /// Waits for everything, then tells the verdict: the report, or kCorrupted naming the shard and the pages. Any number
  /// of times, any thread.
  [[nodiscard]] Result<Report> result();

private:
  Result<void> check_usable() const;
  std::shared_ptr<Waking> waking_;
};

} // namespace stillwake
