// SPDX-License-Identifier: Apache-2.0
// swap: puts one set to sleep while waking another, device by device, all of it or nothing.
#include "allocator/base/base.h"
#include "shard/at_once.h"
#include "shard/device_swap.h"
#include "shard/memory_shortage.h"
#include "shard/option_checks.h"
#include "shard/sleep_stage.h"
#include "shard/transition.h"
#include "shard/wake_stage.h"

#include <algorithm>

namespace stillwake {
namespace {

using DeviceSwaps = std::vector<std::unique_ptr<DeviceSwap>>;

Result<void> refuse_overlap(const std::vector<ShardCore*>& outgoing, const std::vector<ShardCore*>& incoming) {
  for (ShardCore* core : outgoing) {
    if (std::find(incoming.begin(), incoming.end(), core) != incoming.end()) {
      return failure(ErrorCode::kInvalidArgument,
                     "shard '" + core->name() + "' is to go out and to come in; name it on one side");
    }
    if (!incoming.empty() && &incoming.front()->registry() != &core->registry()) {
      return failure(ErrorCode::kInvalidArgument, "shards '" + core->name() + "' and '" + incoming.front()->name() +
                                                      "' belong to different drivers; a swap is of one");
    }
  }
  return {};
}

DeviceSwaps split_by_device(SleepStage& sleep, WakeStage& wake, Bytes chunk) {
  std::vector<SwapSides> sides;
  for (ShardCore* core : sleep.shards()) {
    group_of(sides, core->device()).outgoing.push_back(core);
  }
  for (SavePlan& plan : sleep.plans()) {
    group_of(sides, *plan.device).plan = &plan;
  }
  // The arrivals of all devices in their order, each then told to its device by its place there.
  std::vector<std::vector<MappedRun>> missing;
  std::vector<std::size_t> place_on_device;
  for (WakeStage::Part& part : wake.parts()) {
    SwapSides& here = group_of(sides, part.core->device());
    place_on_device.push_back(here.incoming.size());
    here.incoming.push_back({part.core, part.backed()});
    missing.push_back(part.missing);
  }
  for (const auto& [shard, run] : order_arrivals(std::move(missing), wake.wanted_first())) {
    group_of(sides, wake.parts()[shard].core->device()).arrivals.push_back({place_on_device[shard], run});
  }
  DeviceSwaps swaps;
  for (SwapSides& side : sides) {
    swaps.push_back(std::make_unique<DeviceSwap>(std::move(side), chunk));
  }
  return swaps;
}

// All devices at once; the first error.
Result<void> on_all(DeviceSwaps& swaps, Result<void> (DeviceSwap::*step)()) {
  std::vector<Result<void>> outcomes(swaps.size());
  if (!swaps.empty()) {
    run_at_once(swaps.front()->device().table(), "swapping on several devices at once", swaps.size(),
                [&](std::size_t i) { outcomes[i] = (*swaps[i].*step)(); });
  }
  for (Result<void>& outcome : outcomes) {
    STILLWAKE_TRY(std::move(outcome));
  }
  return {};
}

std::vector<DeviceNeed> needs_of(const DeviceSwaps& swaps) {
  std::vector<DeviceNeed> needs;
  for (const auto& swap : swaps) {
    group_of(needs, swap->device()).pages = swap->lacking();
  }
  return needs;
}

// What is needed beyond the outgoing set, on every device or on none.
Result<void> take_fresh(DeviceSwaps& swaps) {
  for (auto& swap : swaps) {
    auto taken = swap->take_fresh();
    if (taken) {
      continue;
    }
    for (auto& other : swaps) {
      other->drop_fresh();
    }
    Error error = std::move(taken).error();
    error.message = "swapping, beyond what the outgoing set leaves: " + error.message + "; nothing was moved";
    return failure(std::move(error));
  }
  return {};
}

Result<void> move_all(DeviceSwaps& swaps, SleepStage& sleep, bool checked) {
  if (checked) {
    // The proof covers the whole set, so all of it is saved before the first page leaves.
    STILLWAKE_TRY(on_all(swaps, &DeviceSwap::save_all));
    STILLWAKE_TRY(sleep.prove_unchanged());
  }
  return on_all(swaps, &DeviceSwap::run);
}

// Undoes what every device did. Outgoing shards that cannot be put back are unusable from then on, and named.
Error undo(DeviceSwaps& swaps, SleepStage& sleep, WakeStage& wake, Error cause) {
  for (auto& swap : swaps) {
    swap->stop_saving();
  }
  bool lost = cause.code == ErrorCode::kLost;
  for (auto& swap : swaps) {
    for (const Unproven& unproven : swap->roll_back()) {
      lost = lost || unproven.error.code == ErrorCode::kLost;
      unproven.core->set_state(ShardState::kCorrupted);
      cause.code = ErrorCode::kCorrupted;
      cause.message += "; and shard '" + unproven.core->name() +
                       "' could not be put back, its backing is kept: " + unproven.error.describe();
    }
  }
  if (lost) {
    cause.code = ErrorCode::kLost;
    for (ShardCore* core : sleep.shards()) {
      core->ask_whether_lost();
    }
    for (const WakeStage::Part& part : wake.parts()) {
      part.core->ask_whether_lost();
    }
  }
  sleep.abandon();
  wake.abandon();
  return cause;
}

Result<Report> swap_once(const std::vector<ShardCore*>& out, const std::vector<ShardCore*>& in,
                         const SleepOptions& sleep_options, const WakeOptions& wake_options, MemoryShortage& shortage,
                         std::vector<DeviceNeed>& needs) {
  auto sleeping = SleepStage::begin(out, sleep_options);
  STILLWAKE_TRY(sleeping);
  auto waking = WakeStage::begin(in, wake_options);
  STILLWAKE_TRY(waking);
  SleepStage& sleep = **sleeping;
  WakeStage& wake = **waking;
  // All of it, before anything is unmapped: pinning that fails gives up what it has pinned, and that may by then hold
  // the only copy of a page.
  STILLWAKE_TRY(sleep.finish_pinning());
  DeviceSwaps swaps = split_by_device(sleep, wake, wake_options.chunk);
  for (auto taken = take_fresh(swaps); !taken; taken = take_fresh(swaps)) {
    STILLWAKE_TRY(shortage.wait(std::move(taken).error(), needs_of(swaps)));
  }
  Clock& clock = *out.front()->device().table().clock;
  const TimePoint moving = clock.now();
  if (auto moved = move_all(swaps, sleep, sleep_options.checked); !moved) {
    Error error = undo(swaps, sleep, wake, std::move(moved).error());
    needs = needs_of(swaps);
    return failure(std::move(error));
  }
  Report report = sleep.report();
  report.kind = Report::Kind::kSwap;
  report.verified = true;
  report.shards += wake.report().shards;
  report.shards_moved += wake.report().shards_moved;
  report.live += wake.report().live;
  for (auto& swap : swaps) {
    swap->conclude(report);
  }
  report.steps.push_back({"move", clock.now() - moving, report.copied});
  sleep.conclude();
  wake.conclude();
  for (const auto* set : {&out, &in}) {
    for (ShardCore* core : *set) {
      report.host_pinned += core->mirror().pinned();
    }
  }
  return report;
}

} // namespace

Result<Report> swap(const ShardSet& outgoing, const ShardSet& incoming, const SleepOptions& sleep_options,
                    const WakeOptions& wake_options) {
  STILLWAKE_TRY(in_reach());
  auto out = cores_of(outgoing);
  STILLWAKE_TRY(out);
  auto in = cores_of(incoming);
  STILLWAKE_TRY(in);
  STILLWAKE_TRY(refuse_overlap(*out, *in));
  STILLWAKE_TRY(check_options(sleep_options));
  STILLWAKE_TRY(check_options(wake_options, *in));
  if (out->empty() || in->empty()) {
    return failure(ErrorCode::kInvalidArgument,
                   std::string("a swap needs shards on both sides; for one side alone call ") +
                       (out->empty() ? "wake" : "sleep"));
  }
  Clock& clock = *out->front()->device().table().clock;
  const TimePoint begin = clock.now();
  MemoryShortage shortage(out->front()->registry(), clock, wake_options.timeout);
  while (true) {
    std::vector<DeviceNeed> needs;
    auto swapped =
        in_one_piece("swapping", [&] { return swap_once(*out, *in, sleep_options, wake_options, shortage, needs); });
    if (swapped) {
      swapped->took = clock.now() - begin;
      return swapped;
    }
    // A neighbour may have taken memory in the middle: everything is where it was, and may be tried again.
    STILLWAKE_TRY(shortage.wait(std::move(swapped).error(), needs));
  }
}

} // namespace stillwake
