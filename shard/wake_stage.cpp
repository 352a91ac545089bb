// SPDX-License-Identifier: Apache-2.0
#include "shard/wake_stage.h"

#include "shard/option_checks.h"
#include "shard/quiesce.h"
#include "shard/restore_plan.h"

#include <algorithm>

namespace stillwake {
namespace {

// A driver creates memory about sixty times as fast as the bus fills it: copies of this part of the pages keep the bus
// busy until the memory of all others is there. More of them would be in the way of the mapping that comes next.
constexpr std::size_t kHeadFraction = 60;

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
  stage->report_.steps.push_back({"plan", stage->clock_.now() - stage->begin_, Bytes()});
  return stage;
}

Result<std::unique_ptr<WakeStage>> WakeStage::prepare(const std::vector<ShardCore*>& set, const WakeOptions& options) {
  auto begun = begin(set, options);
  STILLWAKE_TRY(begun);
  STILLWAKE_TRY((*begun)->take_and_map());
  return begun;
}

Result<std::shared_ptr<Waking>> WakeStage::wake(const std::vector<ShardCore*>& set, const std::vector<Stream>& streams,
                                                const WakeOptions& options) {
  auto begun = begin(set, options);
  STILLWAKE_TRY(begun);
  WakeStage& stage = **begun;
  STILLWAKE_TRY(stage.check_streams(streams));
  if (seems_to_fit(stage.parts_)) {
    auto waking = stage.supply_and_restore(streams);
    if (waking) {
      return waking;
    }
    give_memory_back(stage.parts_);
    if (waking.error().code != ErrorCode::kOutOfDeviceMemory) {
      return failure(stage.note_loss(failure(std::move(waking).error())).error());
    }
    // It did not fit after all, in pieces or because a neighbour was quicker: all of it first, then.
    set.front()->device().table().log(LogLevel::kInfo, waking.error().describe().c_str());
    stage.report_.steps.resize(1); // the plan stands
  }
  STILLWAKE_TRY(stage.take_and_map());
  return stage.commit(streams);
}

Result<void> WakeStage::hold(const std::vector<ShardCore*>& set) {
  report_.shards = set.size();
  for (ShardCore* core : set) {
    devices_.insert(core->devices().begin(), core->devices().end());
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
    part.find_missing();
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

Result<void> WakeStage::take_and_map() {
  const TimePoint begin = clock_.now();
  STILLWAKE_TRY(note_loss(take_all(parts_, clock_, options_.timeout)));
  const TimePoint created = clock_.now();
  report_.steps.push_back({"create", created - begin, Bytes()});
  auto mapped = map_all(parts_);
  STILLWAKE_TRY(note_loss(mapped ? Result<void>() : failure(mapped.error())));
  report_.mapped = *mapped;
  report_.steps.push_back({"map", clock_.now() - created, report_.mapped});
  for (Part& part : parts_) {
    part.core->set_state(ShardState::kStagedWake);
  }
  return {};
}

Result<void> WakeStage::check_streams(const std::vector<Stream>& streams) const {
  for (Stream stream : streams) {
    bool owned = false;
    for (Device* device : devices_) {
      auto owns = device->owns(stream, "waking");
      STILLWAKE_TRY(owns);
      owned = owned || *owns;
    }
    if (!owned) {
      return failure(ErrorCode::kInvalidArgument,
                     "waking: stream " + hexadecimal(stream) +
                         ", which is to wait, belongs to no device of the set; give streams of its devices");
    }
    for (const Part& part : parts_) {
      STILLWAKE_TRY(refuse_captures(part.core->device(), {stream}));
    }
  }
  return {};
}

std::vector<WantedPages> WakeStage::wanted_first() const {
  std::vector<WantedPages> wanted;
  for (const WakeFirst& first : options_.first) {
    const DeviceAddress address(first.pointer);
    const auto part = std::find_if(parts_.begin(), parts_.end(),
                                   [&](const Part& p) { return p.core->reservation().contains(address); });
    if (part == parts_.end()) {
      continue; // it lies in a shard of the set that is awake already: the options were checked
    }
    const Bytes offset = address - part->core->reservation().base();
    const Pages begin = pages_below(offset), end = pages_holding(offset + first.size);
    WantedPages pages{static_cast<std::size_t>(std::distance(parts_.begin(), part)), {}};
    for (const MappedRun& run : part->runs) {
      const Pages from = std::max(begin, run.pages.first), to = std::min(end, run.pages.end());
      if (from < to) {
        pages.pages.push_back({from, to - from});
      }
    }
    wanted.push_back(std::move(pages));
  }
  return wanted;
}

Result<std::vector<WakingJob>> WakeStage::start(std::vector<WakingShard>& shards, std::vector<PageSupply>* supplies) {
  report_.copied = Bytes(); // a start that failed may have counted
  report_.copies = 0;
  std::vector<RestorePlan> plans;
  for (Part& part : parts_) {
    WakingShard shard(*part.core);
    shard.job = static_cast<std::size_t>(&group_of(plans, part.core->device()) - plans.data());
    shards.push_back(std::move(shard));
  }
  for (const WantedPages& wanted : wanted_first()) {
    WakingShard& shard = shards[wanted.shard];
    add_to_plan(plans[shard.job], shard, static_cast<std::uint32_t>(wanted.shard), wanted.pages);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::vector<PageRange> all;
    for (const MappedRun& run : parts_[i].runs) {
      all.push_back(run.pages);
    }
    add_to_plan(plans[shards[i].job], shards[i], static_cast<std::uint32_t>(i), all);
    shards[i].kept = kept_pages_by_piece(*parts_[i].core, parts_[i].runs);
  }
  std::vector<WakingJob> jobs;
  for (RestorePlan& plan : plans) {
    report_.copied += plan.copied;
    report_.verified = report_.verified && plan.is_verified;
    jobs.push_back({plan.device, nullptr, std::move(plan.owners)});
    if (plan.tasks.empty()) {
      continue;
    }
    WakingJob& job = jobs.back();
    auto restore = shards[job.owners.front().shard].core->engine().begin_restore(std::move(plan.tasks), options_.chunk);
    STILLWAKE_TRY(restore);
    job.restore = std::move(*restore);
  }
  if (supplies != nullptr) {
    STILLWAKE_TRY(queue_heads(jobs, *supplies));
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!jobs[i].restore) {
      continue;
    }
    for (std::size_t shard = 0; supplies != nullptr && shard < shards.size(); ++shard) {
      if (shards[shard].job == i) {
        STILLWAKE_TRY((*supplies)[shard].supply_rest(parts_[shard].extents));
      }
    }
    STILLWAKE_TRY(jobs[i].restore->queue(jobs[i].restore->chunks()));
    report_.copies += jobs[i].restore->copies();
  }
  return jobs;
}

// Enough of every device's pages that its bus is busy until the memory of the rest is there.
Result<void> WakeStage::queue_heads(std::vector<WakingJob>& jobs, std::vector<PageSupply>& supplies) {
  for (WakingJob& job : jobs) {
    if (!job.restore) {
      continue;
    }
    const std::size_t chunks = std::max<std::size_t>(1, job.restore->chunk_of(job.owners.size() / kHeadFraction));
    for (std::size_t task = 0; task < job.owners.size() && job.restore->chunk_of(task) < chunks; ++task) {
      const auto [shard, page] = job.owners[task];
      STILLWAKE_TRY(supplies[shard].supply(page, parts_[shard].extents));
    }
    STILLWAKE_TRY(job.restore->queue(chunks));
  }
  return {};
}

Result<std::shared_ptr<Waking>> WakeStage::commit(const std::vector<Stream>& streams) {
  if (over_) {
    return failure(ErrorCode::kInvalidArgument, "this wake was committed or abandoned before; stage a new one");
  }
  STILLWAKE_TRY(check_streams(streams));
  auto waking = restore(streams);
  if (!waking) {
    auto failed = note_loss(failure(std::move(waking).error()));
    abandon();
    return failure(std::move(failed).error());
  }
  return waking;
}

Result<std::shared_ptr<Waking>> WakeStage::restore(const std::vector<Stream>& streams) {
  const TimePoint begin = clock_.now();
  std::vector<WakingShard> shards;
  auto jobs = start(shards, nullptr);
  STILLWAKE_TRY(jobs);
  return hand_over(std::move(shards), std::move(*jobs), streams, begin);
}

Result<std::shared_ptr<Waking>> WakeStage::supply_and_restore(const std::vector<Stream>& streams) {
  const TimePoint begin = clock_.now();
  std::vector<PageSupply> supplies;
  for (const Part& part : parts_) {
    supplies.emplace_back(*part.core, part.missing);
  }
  std::vector<WakingShard> shards;
  auto jobs = start(shards, &supplies);
  STILLWAKE_TRY(jobs);
  Duration creating{0}, mapping{0};
  report_.mapped = Bytes();
  for (const PageSupply& supply : supplies) {
    STILLWAKE_CHECK(supply.is_complete()); // every page that is missing is restored
    creating += supply.creating();
    mapping += supply.mapping();
    report_.mapped += Bytes(supply.pages());
  }
  report_.steps.push_back({"create", creating, Bytes()});
  report_.steps.push_back({"map", mapping, report_.mapped});
  return hand_over(std::move(shards), std::move(*jobs), streams, begin);
}

Result<std::shared_ptr<Waking>> WakeStage::hand_over(std::vector<WakingShard> shards, std::vector<WakingJob> jobs,
                                                     const std::vector<Stream>& streams, TimePoint begin) {
  report_.steps.push_back({"queue", clock_.now() - begin, Bytes()});
  report_.steps.push_back({"restore", Duration(), report_.copied});
  auto waking = std::make_shared<Waking>(std::move(shards), ready_, std::move(jobs), report_, begin_, begin, clock_);
  for (Stream stream : streams) {
    STILLWAKE_TRY(waking->wait_all(stream)); // else its end waits for what is on its way: it can still be undone
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
  give_memory_back(parts_);
  for (Part& part : parts_) {
    if (part.core->stored_state() == ShardState::kStagedWake) {
      part.core->set_state(ShardState::kAsleep);
    }
  }
  held_.release_all();
}

} // namespace stillwake
