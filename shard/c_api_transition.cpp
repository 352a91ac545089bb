// SPDX-License-Identifier: Apache-2.0
// The C calls for sleep, wake and swap, and for their halves.
#include "shard/c_api_handles.h"

#include <fmt/format.h>

using namespace stillwake;
using namespace stillwake::c_api;

namespace stillwake::c_api {

Result<HandleSet> read_set(stillwake_shard* const* shards, std::size_t count, const char* name) {
  if (count != 0) {
    STILLWAKE_TRY(check_given(static_cast<const void*>(shards), name));
  }
  HandleSet read;
  for (std::size_t i = 0; i < count; ++i) {
    if (shards[i] == nullptr) {
      return failure(ErrorCode::kInvalidArgument, fmt::format("{}[{}] of {} is null", name, i, count));
    }
    read.set.push_back(&shards[i]->shard);
    read.handles.push_back(shards[i]);
  }
  return read;
}

Result<std::vector<Stream>> read_streams(void* const* streams, std::size_t count, const char* name) {
  if (count != 0) {
    STILLWAKE_TRY(check_given(static_cast<const void*>(streams), name));
  }
  std::vector<Stream> read;
  for (std::size_t i = 0; i < count; ++i) {
    read.push_back(static_cast<Stream>(streams[i])); // null is a stream: the legacy one
  }
  return read;
}

Result<SleepOptions> read_options(const stillwake_sleep_options* given) {
  const auto read_in = read(given, "stillwake_sleep_options");
  STILLWAKE_TRY(read_in);
  const auto timeout = read_timeout(read_in->has_timeout, read_in->timeout_ns);
  STILLWAKE_TRY(timeout);
  SleepOptions options;
  options.timeout = *timeout;
  options.checked = read_in->checked != 0;
  auto may_capture = read_streams(read_in->may_capture, read_in->may_capture_count, "may_capture");
  STILLWAKE_TRY(may_capture);
  options.may_capture = *std::move(may_capture);
  return options;
}

Result<WakeOptions> read_options(const stillwake_wake_options* given) {
  const auto read_in = read(given, "stillwake_wake_options");
  STILLWAKE_TRY(read_in);
  const auto timeout = read_timeout(read_in->has_timeout, read_in->timeout_ns);
  STILLWAKE_TRY(timeout);
  STILLWAKE_TRY(check_number(read_in->reserved, 0, "reserved", "0 alone"));
  WakeOptions options;
  options.timeout = *timeout;
  if (read_in->chunk != 0) {
    options.chunk = Bytes(read_in->chunk);
  }
  if (read_in->first_count != 0) {
    STILLWAKE_TRY(check_given(read_in->first, "first"));
  }
  for (std::uint64_t i = 0; i < read_in->first_count; ++i) {
    options.first.push_back({read_in->first[i].pointer, Bytes(read_in->first[i].size)});
  }
  return options;
}

namespace {

/// A staged half with what it keeps open: its driver, and its shards until it is spent.
template <class Half> class StagedHandle {
public:
  StagedHandle(HandleSet set, Half half) : set_(std::move(set)), half_(std::move(half)) {
    if (set_.driver() != nullptr) {
      driver_ = set_.driver();
      ++driver_->open_below;
    }
    for (stillwake_shard* shard : set_.handles) {
      ++shard->staged;
    }
  }
  ~StagedHandle() {
    spend([](Half& half) { half.abandon(); });
    if (driver_ != nullptr) {
      --driver_->open_below;
    }
  }
  StagedHandle(const StagedHandle&) = delete;
  StagedHandle& operator=(const StagedHandle&) = delete;

  stillwake_driver* driver() const { return driver_; }

  /// kInvalidArgument for a half that was committed or abandoned.
  [[nodiscard]] Result<void> check_unspent() const {
    if (!half_) {
      return failure(ErrorCode::kInvalidArgument, "the staged half is spent: it was committed or abandoned before");
    }
    return {};
  }
  /// Runs the last thing that is done with the half, and lets go of the shards; nothing when it is spent.
  template <class Last> void spend(Last&& last) {
    if (half_) {
      std::forward<Last>(last)(*half_);
      half_.reset();
      for (stillwake_shard* shard : set_.handles) {
        --shard->staged;
      }
    }
  }

private:
  HandleSet set_;
  stillwake_driver* driver_ = nullptr;
  std::optional<Half> half_; // empty once spent
};

} // namespace
} // namespace stillwake::c_api

struct stillwake_staged_sleep : StagedHandle<StagedSleep> {
  using StagedHandle::StagedHandle;
};
struct stillwake_staged_wake : StagedHandle<StagedWake> {
  using StagedHandle::StagedHandle;
};

namespace {

/// What sleep, wake and swap have in common: a call that answers a report.
template <class Options, class Transition>
Result<void> run(Transition&& transition, const Options* given, stillwake_report** report) {
  const auto options = read_options(given);
  STILLWAKE_TRY(options);
  ReportHandle handle = make_report(report);
  auto done = std::forward<Transition>(transition)(*options);
  STILLWAKE_TRY(done);
  hand_out(std::move(handle), *std::move(done), report);
  return {};
}

/// The same for a transition of one set.
template <class Options, class Transition>
stillwake_status run_on_set(stillwake_shard* const* shards, std::size_t count, const Options* given,
                            stillwake_report** report, Transition transition) {
  return guarded([&]() -> Result<void> {
    const auto read_in = read_set(shards, count, "shards");
    STILLWAKE_TRY(read_in);
    return run([&](const auto& asked) { return transition(read_in->set, asked); }, given, report);
  });
}

/// And of every shard of a driver.
template <class Options, class Transition>
stillwake_status run_on_all(stillwake_driver* driver, const Options* given, stillwake_report** report,
                            Transition transition) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    return run([&](const auto& asked) { return transition(*driver->driver, asked); }, given, report);
  });
}

template <class Staged, class Options, class Stage>
stillwake_status stage_set(stillwake_shard* const* shards, std::size_t count, const Options* given, Staged** staged,
                           Stage stage) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(staged, "staged"));
    auto read_in = read_set(shards, count, "shards");
    STILLWAKE_TRY(read_in);
    const auto asked = read_options(given);
    STILLWAKE_TRY(asked);
    auto half = stage(read_in->set, *asked);
    STILLWAKE_TRY(half);
    *staged = std::make_unique<Staged>(*std::move(read_in), *std::move(half)).release();
    return {};
  });
}

template <class Staged> stillwake_status abandon_half(Staged* staged) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(staged, "staged"));
    STILLWAKE_TRY(in_reach()); // before the half is spent
    STILLWAKE_TRY(staged->check_unspent());
    staged->spend([](auto& half) { half.abandon(); });
    return {};
  });
}

template <class Staged> stillwake_status release_half(Staged* staged) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(staged, "staged"));
    delete staged;
    return {};
  });
}

} // namespace

extern "C" {

stillwake_status stillwake_sleep(stillwake_shard* const* shards, size_t count, const stillwake_sleep_options* options,
                                 stillwake_report** report) {
  return run_on_set(shards, count, options, report,
                    [](const ShardSet& set, const SleepOptions& asked) { return sleep(set, asked); });
}

stillwake_status stillwake_sleep_all(stillwake_driver* driver, const stillwake_sleep_options* options,
                                     stillwake_report** report) {
  return run_on_all(driver, options, report, [](Driver& all, const SleepOptions& asked) { return sleep(all, asked); });
}

stillwake_status stillwake_wake(stillwake_shard* const* shards, size_t count, const stillwake_wake_options* options,
                                stillwake_report** report) {
  return run_on_set(shards, count, options, report,
                    [](const ShardSet& set, const WakeOptions& asked) { return wake(set, asked); });
}

stillwake_status stillwake_wake_all(stillwake_driver* driver, const stillwake_wake_options* options,
                                    stillwake_report** report) {
  return run_on_all(driver, options, report, [](Driver& all, const WakeOptions& asked) { return wake(all, asked); });
}

stillwake_status stillwake_swap(stillwake_shard* const* outgoing, size_t outgoing_count,
                                stillwake_shard* const* incoming, size_t incoming_count,
                                const stillwake_sleep_options* sleep_options,
                                const stillwake_wake_options* wake_options, stillwake_report** report) {
  return guarded([&]() -> Result<void> {
    const auto out = read_set(outgoing, outgoing_count, "outgoing");
    STILLWAKE_TRY(out);
    const auto in = read_set(incoming, incoming_count, "incoming");
    STILLWAKE_TRY(in);
    const auto sleep_asked = read_options(sleep_options);
    STILLWAKE_TRY(sleep_asked);
    return run([&](const WakeOptions& asked) { return swap(out->set, in->set, *sleep_asked, asked); }, wake_options,
               report);
  });
}

stillwake_status stillwake_wake_on_streams(stillwake_shard* const* shards, size_t count, void* const* streams,
                                           size_t stream_count, const stillwake_wake_options* options,
                                           stillwake_ticket** ticket) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(ticket, "ticket"));
    const auto read_in = read_set(shards, count, "shards");
    STILLWAKE_TRY(read_in);
    const auto waiting = read_streams(streams, stream_count, "streams");
    STILLWAKE_TRY(waiting);
    const auto asked = read_options(options);
    STILLWAKE_TRY(asked);
    TicketHandle handle = make_ticket(read_in->driver());
    auto woken = wake(read_in->set, *waiting, *asked);
    STILLWAKE_TRY(woken);
    hand_out(std::move(handle), *std::move(woken), ticket);
    return {};
  });
}

stillwake_status stillwake_stage_sleep(stillwake_shard* const* shards, size_t count,
                                       const stillwake_sleep_options* options, stillwake_staged_sleep** staged) {
  return stage_set(shards, count, options, staged, stage_sleep);
}

stillwake_status stillwake_staged_sleep_commit(stillwake_staged_sleep* staged, stillwake_report** report) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(staged, "staged"));
    STILLWAKE_TRY(in_reach()); // before the half is spent
    STILLWAKE_TRY(staged->check_unspent());
    ReportHandle handle = make_report(report);
    Result<Report> done;
    staged->spend([&](StagedSleep& half) { done = half.commit(); });
    STILLWAKE_TRY(done);
    hand_out(std::move(handle), *std::move(done), report);
    return {};
  });
}

stillwake_status stillwake_staged_sleep_abandon(stillwake_staged_sleep* staged) { return abandon_half(staged); }

stillwake_status stillwake_staged_sleep_release(stillwake_staged_sleep* staged) { return release_half(staged); }

stillwake_status stillwake_stage_wake(stillwake_shard* const* shards, size_t count,
                                      const stillwake_wake_options* options, stillwake_staged_wake** staged) {
  return stage_set(shards, count, options, staged, stage_wake);
}

stillwake_status stillwake_staged_wake_commit(stillwake_staged_wake* staged, void* const* streams, size_t stream_count,
                                              stillwake_ticket** ticket) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(staged, "staged"));
    STILLWAKE_TRY(check_given(ticket, "ticket"));
    STILLWAKE_TRY(in_reach()); // before the half is spent
    STILLWAKE_TRY(staged->check_unspent());
    const auto waiting = read_streams(streams, stream_count, "streams");
    STILLWAKE_TRY(waiting);
    TicketHandle handle = make_ticket(staged->driver());
    std::optional<Result<Ticket>> done;
    staged->spend([&](StagedWake& half) { done = half.commit(*waiting); });
    STILLWAKE_TRY(*done);
    hand_out(std::move(handle), **std::move(done), ticket);
    return {};
  });
}

stillwake_status stillwake_staged_wake_abandon(stillwake_staged_wake* staged) { return abandon_half(staged); }

stillwake_status stillwake_staged_wake_release(stillwake_staged_wake* staged) { return release_half(staged); }

} // extern "C"
