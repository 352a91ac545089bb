// SPDX-License-Identifier: Apache-2.0
// What the handles of the C interface point at. They count what was opened on them, so that closing in the wrong order
// is an answer and not a crash.
#pragma once

#include "allocator/base/base.h"
#include "shard/c_api_guard.h"
#include "shard/c_api_owner.h"

#include <atomic>
#include <memory>
#include <vector>

struct stillwake_driver {
  stillwake_log_function log = nullptr; // before `driver`, which calls it until it is closed
  void* log_context = nullptr;
  std::optional<stillwake::Driver> driver; // always there once the handle was handed out
  std::string description;
  std::atomic<std::int64_t> open_below{0}; // shards, staged halves, tickets
};

struct stillwake_shard {
  stillwake_shard(stillwake_driver& driver_, std::unique_ptr<stillwake::c_api::CallbackOwner> owner_,
                  stillwake::Shard shard_)
      : driver(driver_), owner(std::move(owner_)), shard(std::move(shard_)) {
    ++driver.open_below;
  }
  ~stillwake_shard() { --driver.open_below; }
  stillwake_shard(const stillwake_shard&) = delete;
  stillwake_shard& operator=(const stillwake_shard&) = delete;

  stillwake_driver& driver;
  std::unique_ptr<stillwake::c_api::CallbackOwner> owner; // outlives `shard`
  stillwake::Shard shard;
  std::atomic<std::int64_t> staged{0}; // staged halves that are not spent
};

namespace stillwake::c_api {

/// The shards of one call: as the C++ interface wants them, and their handles.
struct HandleSet {
  ShardSet set;
  std::vector<stillwake_shard*> handles;

  /// The driver of the first, null for an empty set.
  stillwake_driver* driver() const { return handles.empty() ? nullptr : &handles.front()->driver; }
};
[[nodiscard]] Result<HandleSet> read_set(stillwake_shard* const* shards, std::size_t count, const char* name);
[[nodiscard]] Result<std::vector<Stream>> read_streams(void* const* streams, std::size_t count, const char* name);
[[nodiscard]] Result<SleepOptions> read_options(const stillwake_sleep_options* options);
[[nodiscard]] Result<WakeOptions> read_options(const stillwake_wake_options* options);

/// Handles are made before the transition runs: without memory for a handle nothing may have happened.
struct ReportDeleter {
  void operator()(stillwake_report* report) const;
};
using ReportHandle = std::unique_ptr<stillwake_report, ReportDeleter>;
/// Null when the caller wants no report.
ReportHandle make_report(stillwake_report** wanted);
void hand_out(ReportHandle handle, Report report, stillwake_report** to) noexcept;

struct TicketDeleter {
  void operator()(stillwake_ticket* ticket) const;
};
using TicketHandle = std::unique_ptr<stillwake_ticket, TicketDeleter>;
/// Counts as open on the driver, which is null for a wake of nothing.
TicketHandle make_ticket(stillwake_driver* driver);
void hand_out(TicketHandle handle, Ticket ticket, stillwake_ticket** to) noexcept;

} // namespace stillwake::c_api
