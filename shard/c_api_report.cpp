// SPDX-License-Identifier: Apache-2.0
// The C calls for reports and tickets.
#include "shard/c_api_handles.h"

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <string>

using namespace stillwake;
using namespace stillwake::c_api;

static_assert(STILLWAKE_REPORT_SLEEP == static_cast<int>(Report::Kind::kSleep));
static_assert(STILLWAKE_REPORT_WAKE == static_cast<int>(Report::Kind::kWake));
static_assert(STILLWAKE_REPORT_SWAP == static_cast<int>(Report::Kind::kSwap));

struct stillwake_report {
  stillwake_report() = default;
  ~stillwake_report() { delete line_.load(); }
  stillwake_report(const stillwake_report&) = delete;
  stillwake_report& operator=(const stillwake_report&) = delete;

  /// Made when somebody asks for it, since it takes memory; of several at once the first. No lock, which a child made
  /// by fork might find held.
  const std::string& line() {
    const std::string* made = line_;
    if (made == nullptr) {
      auto own = std::make_unique<const std::string>(report.line());
      if (line_.compare_exchange_strong(made, own.get())) {
        made = own.release();
      }
    }
    return *made;
  }

  Report report;

private:
  std::atomic<const std::string*> line_{nullptr};
};

struct stillwake_ticket {
  explicit stillwake_ticket(stillwake_driver* driver_) : driver(driver_) {
    if (driver != nullptr) {
      ++driver->open_below;
    }
  }
  ~stillwake_ticket() {
    ticket.reset();
    if (driver != nullptr) {
      --driver->open_below;
    }
  }
  stillwake_ticket(const stillwake_ticket&) = delete;
  stillwake_ticket& operator=(const stillwake_ticket&) = delete;

  std::optional<Ticket> ticket; // always there once the handle was handed out
  stillwake_driver* driver;
};

namespace stillwake::c_api {

void ReportDeleter::operator()(stillwake_report* report) const { delete report; }
ReportHandle make_report(stillwake_report** wanted) {
  return ReportHandle(wanted == nullptr ? nullptr : new stillwake_report());
}
void hand_out(ReportHandle handle, Report report, stillwake_report** to) noexcept {
  if (handle != nullptr) {
    handle->report = std::move(report);
    *to = handle.release();
  }
}

void TicketDeleter::operator()(stillwake_ticket* ticket) const { delete ticket; }
TicketHandle make_ticket(stillwake_driver* driver) { return TicketHandle(new stillwake_ticket(driver)); }
void hand_out(TicketHandle handle, Ticket ticket, stillwake_ticket** to) noexcept {
  handle->ticket.emplace(std::move(ticket));
  *to = handle.release();
}

namespace {

std::uint64_t nanoseconds(Duration duration) { return static_cast<std::uint64_t>(duration.count()); }

Result<void> check_index(std::uint64_t index, std::size_t count, const char* what) {
  if (index >= count) {
    return failure(ErrorCode::kInvalidArgument,
                   fmt::format("{} {} does not exist; the report has {}", what, index, count));
  }
  return {};
}

} // namespace
} // namespace stillwake::c_api

extern "C" {

stillwake_status stillwake_report_figures_get(const stillwake_report* report, stillwake_report_figures* figures) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(report, "report"));
    const Report& from = report->report;
    stillwake_report_figures own{};
    own.kind = static_cast<int32_t>(from.kind);
    own.verified = from.verified ? 1 : 0;
    own.shards = from.shards;
    own.shards_moved = from.shards_moved;
    own.live = from.live.count();
    own.copied = from.copied.count();
    own.unchanged = from.unchanged.count();
    own.trusted = from.trusted.count();
    own.zero = from.zero.count();
    own.discarded = from.discarded.count();
    own.mapped = from.mapped.count();
    own.freed = from.freed.count();
    own.not_freed = from.not_freed.count();
    own.host_pinned = from.host_pinned.count();
    own.copies = from.copies;
    own.took_ns = nanoseconds(from.took);
    own.step_count = from.steps.size();
    own.leftover_count = from.leftovers.size();
    return write(figures, own, "stillwake_report_figures");
  });
}

stillwake_status stillwake_report_line(stillwake_report* report, const char** line) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(report, "report"));
    STILLWAKE_TRY(check_given(line, "line"));
    *line = report->line().c_str();
    return {};
  });
}

stillwake_status stillwake_report_step_get(const stillwake_report* report, uint64_t index,
                                           stillwake_report_step* step) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(report, "report"));
    STILLWAKE_TRY(check_index(index, report->report.steps.size(), "step"));
    const ReportStep& from = report->report.steps[index];
    stillwake_report_step own{};
    own.name = from.name.c_str();
    own.took_ns = nanoseconds(from.took);
    own.bytes = from.bytes.count();
    own.gigabytes_per_second = from.gigabytes_per_second();
    return write(step, own, "stillwake_report_step");
  });
}

stillwake_status stillwake_report_leftover_get(const stillwake_report* report, uint64_t index,
                                               stillwake_report_leftover* leftover) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(report, "report"));
    STILLWAKE_TRY(check_index(index, report->report.leftovers.size(), "leftover"));
    const NotFreed& from = report->report.leftovers[index];
    stillwake_report_leftover own{};
    own.shard = from.shard.c_str();
    own.address = from.address;
    own.size = from.size.count();
    own.why = from.why.c_str();
    return write(leftover, own, "stillwake_report_leftover");
  });
}

stillwake_status stillwake_report_release(stillwake_report* report) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(report, "report"));
    delete report;
    return {};
  });
}

stillwake_status stillwake_ticket_wait(stillwake_ticket* ticket, void* stream) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(ticket, "ticket"));
    return ticket->ticket->wait(static_cast<Stream>(stream));
  });
}

stillwake_status stillwake_ticket_wait_range(stillwake_ticket* ticket, void* stream, const void* pointer,
                                             uint64_t size) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(ticket, "ticket"));
    return ticket->ticket->wait(static_cast<Stream>(stream), pointer, Bytes(size));
  });
}

stillwake_status stillwake_ticket_is_done(stillwake_ticket* ticket, bool* done) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(ticket, "ticket"));
    STILLWAKE_TRY(check_given(done, "done"));
    STILLWAKE_TRY(in_reach());
    *done = ticket->ticket->is_done();
    return {};
  });
}

stillwake_status stillwake_ticket_result(stillwake_ticket* ticket, stillwake_report** report) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(ticket, "ticket"));
    ReportHandle handle = make_report(report);
    auto result = ticket->ticket->result();
    STILLWAKE_TRY(result);
    hand_out(std::move(handle), *std::move(result), report);
    return {};
  });
}

stillwake_status stillwake_ticket_release(stillwake_ticket* ticket) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(ticket, "ticket"));
    delete ticket;
    return {};
  });
}

} // extern "C"
