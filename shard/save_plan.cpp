// SPDX-License-Identifier: Apache-2.0
#include "shard/save_plan.h"

namespace stillwake {

void add_to_plan(std::vector<SavePlan>& plans, ShardCore& core, const std::vector<PageRange>& pieces,
                 PinningJob* pinning) {
  SavePlan& plan = group_of(plans, core.device());
  plan.engine = &core.engine();
  const bool trusted = core.options().policy == Policy::kFrozen && core.options().trust;
  std::uint32_t piece = plan.tasks.empty() ? 0 : plan.tasks.back().piece;
  for (const PageRange& range : pieces) {
    ++piece;
    for (Pages page = range.first; page < range.end(); ++page) {
      const PageEntry& entry = core.pages()[page];
      SaveTask task;
      task.device = core.reservation().at(page);
      task.host = core.mirror().at(page);
      task.page = page;
      task.piece = piece;
      task.pinning = pinning;
      task.may_elide_zero = core.options().host_copy == HostCopy::kPacked;
      if (entry.encoding != PageEncoding::kNone && entry.digest && !entry.host_dirty) {
        task.known = entry.digest;
        task.known_encoding = entry.encoding;
        task.trusted = trusted;
      }
      plan.tasks.push_back(task);
      plan.owners.push_back(&core);
    }
  }
}

void take_over(std::span<const SaveTask> tasks, std::span<ShardCore* const> owners, bool saved, Report& report) {
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const SaveTask& task = tasks[i];
    PageEntry& entry = owners[i]->pages()[task.page];
    if (!saved) {
      entry = PageEntry();
      continue;
    }
    if (task.trusted && task.known) {
      report.trusted += kPageBytes;
      continue;
    }
    const bool unchanged = !task.copied && task.known && task.digest == task.known;
    entry.encoding = task.encoding;
    entry.digest = task.digest;
    entry.host_dirty = false;
    Bytes& counted = task.copied ? report.copied : unchanged ? report.unchanged : report.zero;
    counted += kPageBytes;
  }
}

} // namespace stillwake
