// SPDX-License-Identifier: Apache-2.0
#include "shard/sleep_stage.h"

#include "shard/at_once.h"
#include "shard/option_checks.h"
#include "shard/quiesce.h"

#include <algorithm>
#include <set>

namespace stillwake {

SleepStage::SleepStage(const SleepOptions& options, Clock& clock)
    : options_(options), clock_(clock), begin_(clock.now()) {
  report_.kind = Report::Kind::kSleep;
}

SleepStage::~SleepStage() { abandon(); }

Result<std::unique_ptr<SleepStage>> SleepStage::begin(const std::vector<ShardCore*>& set, const SleepOptions& options) {
  STILLWAKE_CHECK(!set.empty());
  STILLWAKE_TRY(check_options(options));
  std::unique_ptr<SleepStage> stage(new SleepStage(options, *set.front()->device().table().clock));
  STILLWAKE_TRY(stage->hold(set));
  STILLWAKE_TRY(stage->note_loss(stage->seal_and_quiesce()));
  STILLWAKE_TRY(stage->plan());
  STILLWAKE_TRY(stage->note_loss(stage->reserve_host()));
  return stage;
}

Result<std::unique_ptr<SleepStage>> SleepStage::prepare(const std::vector<ShardCore*>& set,
                                                        const SleepOptions& options) {
  auto stage = begin(set, options);
  STILLWAKE_TRY(stage);
  STILLWAKE_TRY((*stage)->note_loss((*stage)->copy()));
  for (Part& part : (*stage)->parts_) {
    part.core->set_state(ShardState::kStagedSleep);
  }
  return stage;
}

std::vector<ShardCore*> SleepStage::shards() const {
  std::vector<ShardCore*> set;
  for (const Part& part : parts_) {
    set.push_back(part.core);
  }
  return set;
}

void SleepStage::note_step(const char* name, TimePoint begin, Bytes bytes) {
  report_.steps.push_back({name, clock_.now() - begin, bytes});
}

Result<void> SleepStage::hold(const std::vector<ShardCore*>& set) {
  report_.shards = set.size();
  std::vector<std::vector<BlockLiveRanges>> told;
  for (ShardCore* core : set) {
    (void)core->state(); // settles a wake that has ended
    ShardOwner* owner = core->options().owner;
    // Owners are asked before anything of ours is held.
    told.push_back(owner != nullptr && core->stored_state() == ShardState::kAwake ? owner->live_ranges()
                                                                                  : std::vector<BlockLiveRanges>());
    if (owner != nullptr && owner->is_capturing(core->options().device).value_or(false)) {
      return failure(ErrorCode::kBusy, "the owner of shard '" + core->name() +
                                           "' says that a graph is being captured; end the capture first");
    }
  }
  for (std::size_t i = 0; i < set.size(); ++i) {
    ShardCore& core = *set[i];
    STILLWAKE_TRY(held_.hold(core));
    const ShardState state = core.stored_state();
    if (state == ShardState::kAsleep) {
      asleep_.push_back(&core);
      continue;
    }
    if (state != ShardState::kAwake) {
      return failure(state_error(core, state, "sleeping"));
    }
    Part part;
    part.core = &core;
    parts_.push_back(std::move(part));
    told_.push_back(std::move(told[i]));
  }
  report_.shards_moved = parts_.size();
  return {};
}

Result<void> SleepStage::note_loss(Result<void> outcome) {
  if (!outcome && outcome.error().code == ErrorCode::kLost) {
    for (Part& part : parts_) {
      part.core->ask_whether_lost();
    }
  }
  return outcome;
}

Result<void> SleepStage::quiesce_all() {
  std::set<Device*> devices;
  for (Part& part : parts_) {
    devices.insert(part.core->devices().begin(), part.core->devices().end());
  }
  for (Device* device : devices) {
    STILLWAKE_TRY(quiesce(*device, options_.timeout));
  }
  return {};
}

Result<void> SleepStage::seal_and_quiesce() {
  const TimePoint begin = clock_.now();
  for (Part& part : parts_) {
    std::vector<Stream> streams = {CU_STREAM_LEGACY};
    for (Stream stream : options_.may_capture) {
      auto owns = part.core->device().owns(stream, "sleeping, of may_capture");
      STILLWAKE_TRY(owns);
      if (*owns) {
        streams.push_back(stream);
      }
    }
    STILLWAKE_TRY(refuse_captures(part.core->device(), streams));
  }
  for (Part& part : parts_) {
    part.core->heap().seal();
    part.core->set_state(ShardState::kSealed);
  }
  STILLWAKE_TRY(quiesce_all());
  note_step("quiesce", begin);
  return {};
}

Result<void> SleepStage::plan() {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    part.core->heap().drain_queue();
    part.core->heap().consolidate(true);
    part.core->forget_unsaved();
    auto live = part.core->live_pages(told_[i]);
    STILLWAKE_TRY(live);
    part.live = std::move(*live);
    report_.live += Bytes(part.live.count);
    if (part.core->options().policy == Policy::kDiscard) {
      report_.discarded += Bytes(part.live.count);
      part.live.pieces.clear();
    }
  }
  return {};
}

Result<void> SleepStage::reserve_host() {
  const TimePoint begin = clock_.now();
  const std::vector<ShardCore*> set = shards();
  for (Part& part : parts_) {
    auto job = part.core->arrange_mirror(part.live.pieces);
    if (!job && job.error().code == ErrorCode::kOverBudget && part.core->registry().give_up_retained(set)) {
      job = part.core->arrange_mirror(part.live.pieces);
    }
    STILLWAKE_TRY(job);
    part.pinning = std::move(*job);
    add_to_plan(plans_, *part.core, part.live.pieces, part.pinning->pins_anything() ? part.pinning.get() : nullptr);
  }
  note_step("reserve host", begin);
  return {};
}

Result<void> SleepStage::finish_pinning() {
  Result<void> outcome;
  for (Part& part : parts_) {
    if (part.pinning == nullptr) {
      continue;
    }
    if (auto pinned = part.pinning->finish(); !pinned) {
      part.core->forget_unpinned();
      outcome = pinned;
    }
    part.pinning.reset();
  }
  for (SavePlan& plan : plans_) {
    for (SaveTask& task : plan.tasks) {
      task.pinning = nullptr; // all is pinned, or nothing will be saved
    }
  }
  return outcome;
}

Result<void> SleepStage::copy() {
  const TimePoint begin = clock_.now();
  std::vector<Result<SaveReport>> saved(plans_.size(), SaveReport());
  if (!plans_.empty()) {
    run_at_once(plans_.front().device->table(), "saving what sleeps on several devices at once", plans_.size(),
                [this, &saved](std::size_t i) { saved[i] = plans_[i].engine->save(plans_[i].tasks); });
  }
  Result<void> outcome;
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    take_over(plans_[i].tasks, plans_[i].owners, saved[i].has_value(), report_);
    if (!saved[i]) {
      outcome = failure(saved[i].error());
      continue;
    }
    report_.copies += saved[i]->copies;
    report_.steps.push_back({"hash", saved[i]->hashing, kPageBytes * plans_[i].tasks.size()});
  }
  // A page that could not be pinned is the cause, a copy to it that failed the consequence.
  if (auto pinned = finish_pinning(); !pinned) {
    outcome = pinned;
  }
  STILLWAKE_TRY(outcome);
  note_step("copy", begin, report_.copied);
  return {};
}

Result<void> SleepStage::prove_unchanged() {
  if (!options_.checked) {
    return {};
  }
  STILLWAKE_TRY(quiesce_all());
  for (SavePlan& plan : plans_) {
    if (!plan.engine->has_kernels()) {
      return failure(ErrorCode::kInvalidArgument,
                     "a checked sleep needs the device code, which this device could not load; sleep unchecked");
    }
    std::vector<DeviceAddress> addresses;
    for (const SaveTask& task : plan.tasks) {
      addresses.push_back(task.device);
    }
    auto digests = plan.engine->digest(addresses);
    STILLWAKE_TRY(digests);
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const SaveTask& task = plan.tasks[i];
      if (task.digest != (*digests)[i]) {
        const ShardCore& core = *plan.owners[i];
        return failure(ErrorCode::kBusy, "page " + std::to_string(task.page.count()) + " of shard '" + core.name() +
                                             "' was written while it was put to sleep; nothing was unmapped");
      }
    }
  }
  return {};
}

Result<Report> SleepStage::commit() {
  if (over_) {
    return failure(ErrorCode::kInvalidArgument, "this sleep was committed or abandoned before; stage a new one");
  }
  if (auto unchanged = note_loss(prove_unchanged()); !unchanged) {
    abandon();
    return failure(std::move(unchanged).error());
  }
  const TimePoint begin = clock_.now();
  bool any_unmapped = false;
  for (Part& part : parts_) {
    if (auto unmapped = part.core->extents().unmap_all(part.core->name(), &any_unmapped, report_); !unmapped) {
      unmapped = note_loss(std::move(unmapped));
      abandon();
      return failure(std::move(unmapped).error());
    }
  }
  for (ShardCore* core : asleep_) {
    any_unmapped = true; // nothing of it can be undone: what stays is listed
    const auto unmapped = core->extents().unmap_all(core->name(), &any_unmapped, report_);
    STILLWAKE_CHECK(unmapped.has_value());
    core->extents().release_all(core->name(), report_);
    report_.host_pinned += core->mirror().pinned();
  }
  note_step("unmap", begin);
  const TimePoint unmapped = clock_.now();
  for (Part& part : parts_) {
    part.core->extents().release_all(part.core->name(), report_);
  }
  note_step("release", unmapped, report_.freed);
  conclude();
  return report_;
}

void SleepStage::conclude() {
  over_ = true;
  for (Part& part : parts_) {
    part.core->set_state(ShardState::kAsleep);
    part.core->count_sleep();
    part.core->note_kept(part.live.runs.empty() ? Pages(0) : part.live.runs.back().end());
    report_.host_pinned += part.core->mirror().pinned();
  }
  held_.release_all();
  report_.took = clock_.now() - begin_;
}

void SleepStage::abandon() {
  if (over_) {
    return;
  }
  over_ = true;
  for (Part& part : parts_) {
    if (part.pinning != nullptr && !part.pinning->finish()) {
      part.core->forget_unpinned();
    }
    part.pinning.reset();
    const ShardState state = part.core->stored_state();
    if (state == ShardState::kSealed || state == ShardState::kStagedSleep) {
      part.core->set_state(ShardState::kAwake);
      part.core->heap().unseal();
    }
  }
  held_.release_all();
}

} // namespace stillwake
