// SPDX-License-Identifier: Apache-2.0
#include "shard/wake_stage.h"

#include "shard/option_checks.h"
#include "shard/quiesce.h"
#include "shard/restore_plan.h"

#include <algorithm>

namespace stillwake {
namespace {

// The parts of `runs` that have no memory behind them.
std::vector<MappedRun> without_backed(const std::vector<MappedRun>& runs, const ExtentMap& extents) {
  if (extents.extents().empty()) {
    return runs;
  }
  std::vector<MappedRun> missing;
  for (const MappedRun& run : runs) {
    bool open = false;
    for (Pages page = run.pages.first; page < run.pages.end(); ++page) {
      if (extents.is_backed(page)) {
        open = false;
      } else if (open) {
        missing.back().pages.count += Pages(1);
      } else {
        missing.push_back({{page, Pages(1)}, run.kind});
        open = true;
      }
    }
  }
  return missing;
}

} // namespace

WakeStage::WakeStage(const WakeOptions& options, Clock& clock) : options_(options), clock_(clock), begin_(clock.now()) {
  report_.kind = Report::Kind::kWake;
  report_.verified = true;
}

WakeStage::~WakeStage() { abandon(); }

Result<std::unique_ptr<WakeStage>> WakeStage::begin(const std::vector<ShardCore*>& set, const WakeOptions& options) {
  STILLWAKE_CHECK(!set.empty());
  STILLWAKE_TRY(check_options(options, set));
  std::unique_ptr<WakeStage> stage(new WakeStage(options, *set.front()->device().table().clock));
  STILLWAKE_TRY(stage->hold(set));
  stage->plan();
  return stage;
}

Result<std::unique_ptr<WakeStage>> WakeStage::prepare(const std::vector<ShardCore*>& set, const WakeOptions& options) {
  auto begun = begin(set, options);
  STILLWAKE_TRY(begun);
  std::unique_ptr<WakeStage> stage = std::move(*begun);
  const TimePoint begin = stage->clock_.now();
  stage->report_.steps.push_back({"plan", begin - stage->begin_, Bytes()});
  STILLWAKE_TRY(stage->note_loss(stage->take_all()));
  const TimePoint created = stage->clock_.now();
  stage->report_.steps.push_back({"create", created - begin, Bytes()});
  STILLWAKE_TRY(stage->note_loss(stage->map()));
  stage->report_.steps.push_back({"map", stage->clock_.now() - created, stage->report_.mapped});
  for (Part& part : stage->parts_) {
    part.core->set_state(ShardState::kStagedWake);
  }
  return stage;
}

Result<void> WakeStage::hold(const std::vector<ShardCore*>& set) {
  report_.shards = set.size();
  for (ShardCore* core : set) {
    if (auto waking = core->waking()) {
      STILLWAKE_TRY(waking->result()); // somebody else's wake is under way: it is waited for
    }
    if (core->stored_state() == ShardState::kAwake) {
      ready_.emplace_back(*core);
      continue;
    }
    STILLWAKE_TRY(held_.hold(*core));
    const ShardState state = core->stored_state();
    if (state != ShardState::kAsleep) {
      return failure(state_error(*core, state, "waking"));
    }
    STILLWAKE_TRY(core->check_kept());
    Part part;
    part.core = core;
    parts_.push_back(std::move(part));
  }
  report_.shards_moved = parts_.size();
  return {};
}

Result<void> WakeStage::note_loss(Result<void> outcome) {
  if (!outcome && outcome.error().code == ErrorCode::kLost) {
    for (Part& part : parts_) {
      part.core->ask_whether_lost();
    }
  }
  return outcome;
}

void WakeStage::plan() {
  for (Part& part : parts_) {
    Heap& heap = part.core->heap();
    heap.drain_queue();
    heap.consolidate(true);
    part.runs = find_mapped_runs(heap.live_blocks());
    part.missing = without_backed(part.runs, part.core->extents());
    for (const PageRange& unused : heap.unused_pages()) {
      for (Pages page = unused.first; page < unused.end(); ++page) {
        if (!part.core->extents().is_backed(page)) {
          heap.note_unbacked({page, Pages(1)});
        }
      }
    }
    for (const MappedRun& run : part.runs) {
      report_.live += Bytes(run.pages.count);
    }
  }
}

Pages WakeStage::missing_on(const Device& device) const {
  Pages missing;
  for (const Part& part : parts_) {
    if (&part.core->device() == &device) {
      for (const MappedRun& run : part.missing) {
        missing += run.pages.count;
      }
    }
  }
  return missing;
}

Result<void> WakeStage::take_once() {
  for (Part& part : parts_) {
    Device& device = part.core->device();
    for (const MappedRun& run : part.missing) {
      Result<std::vector<Physical>> handles = std::vector<Physical>();
      if (run.kind == BlockKind::kOneHandle) {
        auto handle = Physical::create(device, run.pages.count);
        if (handle) {
          handles->push_back(std::move(*handle));
        } else {
          handles = failure(std::move(handle).error());
        }
      } else {
        handles = take_pages(device, run.pages.count);
      }
      if (handles) {
        part.handles.push_back(std::move(*handles));
        continue;
      }
      Error error = std::move(handles).error();
      for (Part& taken : parts_) {
        taken.handles.clear();
      }
      if (error.code == ErrorCode::kOutOfDeviceMemory) {
        if (auto memory = device.memory_info()) {
          error.message = "waking needs " + exact(Bytes(missing_on(device))) + " of device " +
                          std::to_string(device.index().value()) + ", free " + exact(memory->first) + " of " +
                          readable(memory->second) + ", largest possible " +
                          readable(Bytes(pages_below(memory->first))) + "; everything is still asleep";
        }
      }
      return failure(std::move(error));
    }
  }
  return {};
}

bool WakeStage::ask_owners(const Registry& registry) {
  bool gave_up = false;
  for (ShardCore* core : registry.shards()) {
    // An owner may give memory up by destroying shards: those are not there to be asked any more.
    const std::vector<ShardCore*> living = registry.shards();
    if (std::find(living.begin(), living.end(), core) == living.end()) {
      continue;
    }
    if (ShardOwner* owner = core->options().owner) {
      gave_up = owner->memory_is_short(core->options().device, Bytes(missing_on(core->device()))) || gave_up;
    }
  }
  return gave_up;
}

Result<void> WakeStage::take_all() {
  const TimePoint begin = clock_.now();
  bool asked = false;
  while (true) {
    auto taken = take_once();
    if (taken || taken.error().code != ErrorCode::kOutOfDeviceMemory) {
      return taken;
    }
    if (!asked && !parts_.empty()) {
      // Every owner on the driver may hold a cache, the awake ones above all.
      asked = true;
      if (ask_owners(parts_.front().core->registry())) {
        continue;
      }
    }
    const Duration waited = clock_.now() - begin;
    if (!options_.timeout) {
      return taken;
    }
    if (waited >= *options_.timeout) {
      Error error = std::move(taken).error();
      error.code = ErrorCode::kTimedOut;
      error.message = "waited " + std::to_string(seconds(waited)) + " s for device memory: " + error.message;
      return failure(std::move(error));
    }
    // Nothing is held while it waits: two that wait for each other's memory must not both hold half of it.
    clock_.sleep_for(std::min<Duration>(std::chrono::milliseconds(5), *options_.timeout - waited));
  }
}

Result<void> WakeStage::map() {
  for (Part& part : parts_) {
    for (std::size_t i = 0; i < part.missing.size(); ++i) {
      const MappedRun& run = part.missing[i];
      auto extents = part.core->extents().place(run.pages.first, std::move(part.handles[i]));
      STILLWAKE_TRY(extents);
      report_.mapped += Bytes(run.pages.count);
      for (Extent& extent : *extents) {
        part.extents.push_back(std::move(extent));
      }
    }
    part.handles.clear();
  }
  return {};
}

Result<void> WakeStage::check_streams(const std::vector<Stream>& streams) const {
  for (Stream stream : streams) {
    bool owned = false;
    for (const Part& part : parts_) {
      auto may_use = part.core->may_be_used_on(stream, "waking");
      STILLWAKE_TRY(may_use);
      owned = owned || *may_use;
      STILLWAKE_TRY(refuse_captures(part.core->device(), {stream}));
    }
    if (!owned && !parts_.empty()) {
      return failure(ErrorCode::kInvalidArgument,
                     "waking: stream " + hexadecimal(stream) +
                         ", which is to wait, belongs to no device of the woken shards; give streams of their devices");
    }
  }
  return {};
}

Result<std::vector<WakingJob>> WakeStage::start(std::vector<WakingShard>& shards) {
  std::vector<WakingJob> jobs;
  std::vector<RestorePlan> plans;
  for (Part& part : parts_) {
    WakingShard shard(*part.core);
    auto job = std::find_if(jobs.begin(), jobs.end(), [&](WakingJob& j) { return j.device == &part.core->device(); });
    shard.job = static_cast<std::size_t>(std::distance(jobs.begin(), job));
    if (job == jobs.end()) {
      jobs.emplace_back();
      jobs.back().device = &part.core->device();
      plans.emplace_back();
    }
    shards.push_back(std::move(shard));
  }
  for (const WakeFirst& first : options_.first) {
    const DeviceAddress address(first.pointer);
    auto shard = std::find_if(shards.begin(), shards.end(), [&](const WakingShard& s) {
      return s.contains(address) && first.size <= s.base + s.size - address;
    });
    if (shard == shards.end()) {
      continue; // it may lie in a shard of the set that is awake already
    }
    const std::size_t index = static_cast<std::size_t>(std::distance(shards.begin(), shard));
    const Pages begin = pages_below(address - shard->base);
    const Pages end = pages_holding(address - shard->base + first.size);
    std::vector<PageRange> wanted;
    for (const MappedRun& run : parts_[index].runs) {
      const Pages from = std::max(begin, run.pages.first);
      const Pages to = std::min(end, run.pages.end());
      if (from < to) {
        wanted.push_back({from, to - from});
      }
    }
    add_to_plan(plans[shard->job], *shard, static_cast<std::uint32_t>(index), wanted);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::vector<PageRange> all;
    for (const MappedRun& run : parts_[i].runs) {
      all.push_back(run.pages);
    }
    add_to_plan(plans[shards[i].job], shards[i], static_cast<std::uint32_t>(i), all);
    shards[i].kept = kept_pages_by_piece(*parts_[i].core, parts_[i].runs);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    report_.copied += plans[i].copied;
    report_.verified = report_.verified && plans[i].is_verified;
    jobs[i].owners = std::move(plans[i].owners);
    if (plans[i].tasks.empty()) {
      continue;
    }
    const std::size_t shard = jobs[i].owners.front().shard;
    auto restore = shards[shard].core->engine().restore(std::move(plans[i].tasks), options_.chunk);
    STILLWAKE_TRY(restore);
    jobs[i].restore = std::move(*restore);
    report_.copies += jobs[i].restore->copies();
  }
  return jobs;
}

Result<std::shared_ptr<Waking>> WakeStage::commit(const std::vector<Stream>& streams) {
  if (over_) {
    return failure(ErrorCode::kInvalidArgument, "this wake was committed or abandoned before; stage a new one");
  }
  STILLWAKE_TRY(check_streams(streams));
  const TimePoint begin = clock_.now();
  std::vector<WakingShard> shards;
  auto jobs = start(shards);
  if (!jobs) {
    auto failed = note_loss(failure(std::move(jobs).error()));
    abandon();
    return failure(std::move(failed).error());
  }
  report_.steps.push_back({"queue", clock_.now() - begin, Bytes()});
  report_.steps.push_back({"restore", Duration(), report_.copied});
  for (const Part& part : parts_) {
    report_.host_pinned += part.core->mirror().pinned();
  }
  auto waking = std::make_shared<Waking>(std::move(shards), ready_, std::move(*jobs), report_, begin_, clock_);
  for (Stream stream : streams) {
    if (auto waits = waking->wait_all(stream); !waits) {
      waking.reset(); // waits for what is on its way: it can still be undone
      abandon();
      return failure(std::move(waits).error());
    }
  }
  over_ = true;
  for (Part& part : parts_) {
    part.core->extents().add(std::move(part.extents));
  }
  {
    // Whoever sees the shards waking may settle the wake and start the next transition: not before all are open.
    const RankedLock starting = waking->lock();
    for (Part& part : parts_) {
      part.core->set_waking(waking);
      part.core->set_state(ShardState::kWaking);
      part.core->heap().unseal();
    }
    held_.hand_over();
  }
  return waking;
}

void WakeStage::conclude() {
  over_ = true;
  for (Part& part : parts_) {
    part.core->heap().unseal();
    part.core->finish_wake(kept_pages_by_piece(*part.core, part.runs));
  }
  held_.release_all();
}

void WakeStage::abandon() {
  if (over_) {
    return;
  }
  over_ = true;
  for (Part& part : parts_) {
    part.core->extents().take_back(std::move(part.extents));
    part.handles.clear();
    if (part.core->stored_state() == ShardState::kStagedWake) {
      part.core->set_state(ShardState::kAsleep);
    }
  }
  held_.release_all();
}

} // namespace stillwake
