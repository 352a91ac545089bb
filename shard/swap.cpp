// SPDX-License-Identifier: Apache-2.0
// swap: puts one set to sleep while waking another, device by device, all of it or nothing.
#include "shard/device_swap.h"
#include "shard/option_checks.h"
#include "shard/reach.h"
#include "shard/sleep_stage.h"
#include "shard/transition.h"
#include "shard/wake_stage.h"

#include <algorithm>
#include <thread>

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
  std::vector<Device*> devices;
  const auto note = [&](Device& device) {
    if (std::find(devices.begin(), devices.end(), &device) == devices.end()) {
      devices.push_back(&device);
    }
  };
  for (ShardCore* core : sleep.shards()) {
    note(core->device());
  }
  for (const WakeStage::Part& part : wake.parts()) {
    note(part.core->device());
  }
  DeviceSwaps swaps;
  for (Device* device : devices) {
    std::vector<ShardCore*> outgoing;
    SavePlan* plan = nullptr;
    for (ShardCore* core : sleep.shards()) {
      if (&core->device() == device) {
        outgoing.push_back(core);
        for (SavePlan& candidate : sleep.plans()) {
          plan = candidate.engine == &core->engine() ? &candidate : plan;
        }
      }
    }
    std::vector<DeviceSwap::Incoming> incoming;
    for (const WakeStage::Part& part : wake.parts()) {
      if (&part.core->device() == device) {
        incoming.push_back({part.core, part.missing});
      }
    }
    swaps.push_back(std::make_unique<DeviceSwap>(*device, std::move(outgoing), plan, std::move(incoming), chunk));
  }
  return swaps;
}

Result<void> run_all(DeviceSwaps& swaps) {
  std::vector<Result<void>> outcomes(swaps.size());
  std::vector<std::thread> others; // all devices at once
  for (std::size_t i = 1; i < swaps.size(); ++i) {
    others.emplace_back([&, i] { outcomes[i] = swaps[i]->run(); });
  }
  if (!swaps.empty()) {
    outcomes[0] = swaps[0]->run();
  }
  for (std::thread& other : others) {
    other.join();
  }
  for (Result<void>& outcome : outcomes) {
    STILLWAKE_TRY(std::move(outcome));
  }
  return {};
}

// Undoes what every device did. A device that cannot be put back makes its outgoing shards unusable, and says so.
Error undo(DeviceSwaps& swaps, SleepStage& sleep, WakeStage& wake, Error cause) {
  for (auto& swap : swaps) {
    swap->stop_saving();
  }
  for (auto& swap : swaps) {
    if (auto undone = swap->roll_back(); !undone) {
      cause.message += "; and putting the outgoing set back failed: " + undone.error().describe();
      const bool lost = undone.error().code == ErrorCode::kLost;
      for (ShardCore* core : sleep.shards()) {
        core->set_state(lost ? ShardState::kLost : ShardState::kCorrupted);
      }
    }
  }
  sleep.abandon();
  wake.abandon();
  return cause;
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
  auto sleeping = SleepStage::begin(*out, sleep_options);
  STILLWAKE_TRY(sleeping);
  auto waking = WakeStage::begin(*in, wake_options);
  STILLWAKE_TRY(waking);
  SleepStage& sleep = **sleeping;
  WakeStage& wake = **waking;
  // All of it, before anything is unmapped: pinning that fails gives up what it has pinned, and that may by then hold
  // the only copy of a page.
  STILLWAKE_TRY(sleep.finish_pinning());
  DeviceSwaps swaps = split_by_device(sleep, wake, wake_options.chunk);
  const TimePoint moving = clock.now();
  if (auto moved = run_all(swaps); !moved) {
    return failure(undo(swaps, sleep, wake, std::move(moved).error()));
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
  for (ShardCore* core : *out) {
    report.host_pinned += core->mirror().pinned();
  }
  for (ShardCore* core : *in) {
    report.host_pinned += core->mirror().pinned();
  }
  report.took = clock.now() - begin;
  return report;
}

} // namespace stillwake
