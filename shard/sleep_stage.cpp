// SPDX-License-Identifier: Apache-2.0
#include "shard/sleep_stage.h"

#include "shard/quiesce.h"

#include <algorithm>
#include <set>
#include <thread>

namespace stillwake {

SleepStage::SleepStage(const SleepOptions& options, Clock& clock)
    : options_(options), clock_(clock), begin_(clock.now()) {
  report_.kind = Report::Kind::kSleep;
}

SleepStage::~SleepStage() { abandon(); }

Result<std::unique_ptr<SleepStage>> SleepStage::prepare(const std::vector<ShardCore*>& set,
                                                        const SleepOptions& options) {
  STILLWAKE_CHECK(!set.empty());
  std::unique_ptr<SleepStage> stage(new SleepStage(options, *set.front()->device().table().clock));
  STILLWAKE_TRY(stage->hold(set));
  STILLWAKE_TRY(stage->seal_and_quiesce());
  STILLWAKE_TRY(stage->plan());
  STILLWAKE_TRY(stage->reserve_host());
  STILLWAKE_TRY(stage->copy());
  for (Part& part : stage->parts_) {
    part.core->set_state(ShardState::kStagedSleep);
  }
  return stage;
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

Result<void> SleepStage::quiesce_all() {
  std::set<Device*> devices;
  for (Part& part : parts_) {
    devices.insert(part.core->devices().begin(), part.core->devices().end());
  }
  for (Device* device : devices) {
    if (auto quiet = quiesce(*device, options_.timeout); !quiet) {
      if (quiet.error().code == ErrorCode::kLost) {
        for (Part& part : parts_) {
          if (&part.core->device() == device) {
            part.core->set_state(ShardState::kLost);
          }
        }
      }
      return quiet;
    }
  }
  return {};
}

Result<void> SleepStage::seal_and_quiesce() {
  const TimePoint begin = clock_.now();
  for (Part& part : parts_) {
    std::vector<Stream> streams = part.core->heap().seen_streams();
    streams.push_back(CU_STREAM_LEGACY);
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
  std::vector<ShardCore*> set;
  for (Part& part : parts_) {
    set.push_back(part.core);
  }
  for (Part& part : parts_) {
    auto job = part.core->arrange_mirror(part.live.pieces);
    if (!job && job.error().code == ErrorCode::kOverBudget && part.core->registry().give_up_retained(set)) {
      job = part.core->arrange_mirror(part.live.pieces);
    }
    STILLWAKE_TRY(job);
    part.pinning = std::move(*job);
  }
  note_step("reserve host", begin);
  return {};
}

void SleepStage::add_tasks(Part& part, std::size_t index) {
  ShardCore& core = *part.core;
  auto save =
      std::find_if(saves_.begin(), saves_.end(), [&](const DeviceSave& s) { return s.engine == &core.engine(); });
  if (save == saves_.end()) {
    saves_.push_back({&core.engine(), {}, {}, SaveReport()});
    save = std::prev(saves_.end());
  }
  const bool trusted = core.options().policy == Policy::kFrozen && core.options().trust;
  std::uint32_t piece = save->tasks.empty() ? 0 : save->tasks.back().piece;
  for (const PageRange& range : part.live.pieces) {
    ++piece;
    for (Pages page = range.first; page < range.end(); ++page) {
      const PageEntry& entry = core.pages()[page];
      SaveTask task;
      task.device = core.reservation().at(page);
      task.host = core.mirror().at(page);
      task.page = page;
      task.piece = piece;
      task.pinning = part.pinning.get();
      task.may_elide_zero = core.options().host_copy == HostCopy::kPacked;
      if (entry.encoding != PageEncoding::kNone && entry.digest && !entry.host_dirty) {
        task.known = entry.digest;
        task.known_encoding = entry.encoding;
        task.trusted = trusted;
      }
      save->tasks.push_back(task);
      save->part_of_task.push_back(index);
    }
  }
}

Result<void> SleepStage::copy() {
  const TimePoint begin = clock_.now();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    add_tasks(parts_[i], i);
  }
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < saves_.size(); ++i) {
    others.emplace_back([this, i] { saves_[i].saved = saves_[i].engine->save(saves_[i].tasks); });
  }
  if (!saves_.empty()) {
    saves_[0].saved = saves_[0].engine->save(saves_[0].tasks);
  }
  for (std::thread& other : others) {
    other.join();
  }
  Result<void> outcome;
  for (Part& part : parts_) {
    if (auto pinned = part.pinning->finish(); !pinned && outcome) {
      outcome = pinned;
    }
    part.pinning.reset();
  }
  for (DeviceSave& save : saves_) {
    if (!save.saved && outcome) {
      outcome = failure(save.saved.error());
    }
    take_over(save);
  }
  if (!outcome) {
    for (Part& part : parts_) {
      part.core->forget_unpinned();
    }
    return outcome;
  }
  note_step("copy", begin, report_.copied);
  return {};
}

void SleepStage::take_over(const DeviceSave& save) {
  for (std::size_t i = 0; i < save.tasks.size(); ++i) {
    const SaveTask& task = save.tasks[i];
    PageEntry& entry = parts_[save.part_of_task[i]].core->pages()[task.page];
    if (!save.saved) {
      entry = PageEntry(); // what a copy that failed has left is unknown
      continue;
    }
    if (task.trusted && task.known) {
      report_.trusted += kPageBytes;
      continue;
    }
    entry.encoding = task.encoding;
    entry.digest = task.digest;
    entry.host_dirty = false;
    if (task.copied) {
      report_.copied += kPageBytes;
    } else if (task.encoding == PageEncoding::kZero && !(task.known && task.known == task.digest)) {
      report_.zero += kPageBytes;
    } else {
      report_.unchanged += kPageBytes;
    }
  }
  if (save.saved) {
    report_.copies += save.saved->copies;
    report_.steps.push_back({"hash", save.saved->hashing, kPageBytes * save.tasks.size()});
  }
}

Result<void> SleepStage::check_unchanged() {
  STILLWAKE_TRY(quiesce_all());
  for (DeviceSave& save : saves_) {
    if (!save.engine->has_kernels()) {
      return failure(ErrorCode::kInvalidArgument,
                     "a checked sleep needs the device code, which this device could not load; sleep unchecked");
    }
    std::vector<DeviceAddress> addresses;
    for (const SaveTask& task : save.tasks) {
      addresses.push_back(task.device);
    }
    auto digests = save.engine->digest(addresses);
    STILLWAKE_TRY(digests);
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const SaveTask& task = save.tasks[i];
      if (task.digest != (*digests)[i]) {
        const ShardCore& core = *parts_[save.part_of_task[i]].core;
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
  if (options_.checked) {
    if (auto unchanged = check_unchanged(); !unchanged) {
      abandon();
      return failure(std::move(unchanged).error());
    }
  }
  const TimePoint begin = clock_.now();
  bool any_unmapped = false;
  for (Part& part : parts_) {
    if (auto freed = part.core->extents().give_back(part.core->name(), &any_unmapped, report_); !freed) {
      abandon();
      return failure(std::move(freed).error());
    }
  }
  over_ = true;
  for (Part& part : parts_) {
    part.core->set_state(ShardState::kAsleep);
    part.core->count_sleep();
    report_.host_pinned += part.core->mirror().pinned();
  }
  for (ShardCore* core : asleep_) {
    bool committed = true; // nothing of it can be undone: what stays is listed
    auto freed = core->extents().give_back(core->name(), &committed, report_);
    STILLWAKE_CHECK(freed.has_value());
    report_.host_pinned += core->mirror().pinned();
  }
  note_step("unmap and release", begin, report_.freed);
  held_.release_all();
  report_.took = clock_.now() - begin_;
  return report_;
}

void SleepStage::abandon() {
  if (over_) {
    return;
  }
  over_ = true;
  for (Part& part : parts_) {
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
