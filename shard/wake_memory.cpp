// SPDX-License-Identifier: Apache-2.0
#include "shard/wake_memory.h"

#include "shard/memory_shortage.h"

#include <iterator>
#include <utility>

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

Result<void> take_once(std::vector<WakePart>& parts) {
  for (WakePart& part : parts) {
    Device& device = part.core->device();
    for (const MappedRun& run : part.missing) {
      auto handles = take_run(device, run.pages.count, run.kind);
      if (handles) {
        part.handles.push_back(std::move(*handles));
        continue;
      }
      Error error = std::move(handles).error();
      for (WakePart& taken : parts) {
        taken.handles.clear();
      }
      if (error.code == ErrorCode::kOutOfDeviceMemory) {
        if (auto memory = device.memory_info()) {
          auto all = needs_of(parts);
          error.message = "waking needs " + exact(Bytes(group_of(all, device).pages)) + " of device " +
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

} // namespace

void WakePart::find_missing() { missing = without_backed(runs, core->extents()); }

std::vector<PageRange> WakePart::backed() const {
  std::vector<PageRange> backed;
  auto absent = missing.begin(); // in address order, each within a run
  for (const MappedRun& run : runs) {
    Pages page = run.pages.first;
    for (; absent != missing.end() && absent->pages.first < run.pages.end(); ++absent) {
      if (page < absent->pages.first) {
        backed.push_back({page, absent->pages.first - page});
      }
      page = absent->pages.end();
    }
    if (page < run.pages.end()) {
      backed.push_back({page, run.pages.end() - page});
    }
  }
  return backed;
}

std::vector<DeviceNeed> needs_of(const std::vector<WakePart>& parts) {
  std::vector<DeviceNeed> needs;
  for (const WakePart& part : parts) {
    for (const MappedRun& run : part.missing) {
      group_of(needs, part.core->device()).pages += run.pages.count;
    }
  }
  return needs;
}

bool seems_to_fit(const std::vector<WakePart>& parts) {
  for (const DeviceNeed& need : needs_of(parts)) {
    const auto memory = need.device->memory_info();
    if (!memory || memory->first < Bytes(need.pages)) {
      return false;
    }
  }
  return true;
}

Result<void> take_all(std::vector<WakePart>& parts, Clock& clock, std::optional<Duration> timeout) {
  if (parts.empty()) {
    return {};
  }
  MemoryShortage shortage(parts.front().core->registry(), clock, timeout);
  while (true) {
    auto taken = take_once(parts);
    if (taken) {
      return {};
    }
    STILLWAKE_TRY(shortage.wait(std::move(taken).error(), needs_of(parts)));
  }
}

Result<Bytes> map_all(std::vector<WakePart>& parts) {
  Bytes mapped;
  for (WakePart& part : parts) {
    for (std::size_t i = 0; i < part.missing.size(); ++i) {
      const MappedRun& run = part.missing[i];
      auto extents = part.core->extents().place(run.pages.first, std::move(part.handles[i]));
      STILLWAKE_TRY(extents);
      mapped += Bytes(run.pages.count);
      for (Extent& extent : *extents) {
        part.extents.push_back(std::move(extent));
      }
    }
    part.handles.clear();
  }
  return mapped;
}

void give_memory_back(std::vector<WakePart>& parts) {
  for (WakePart& part : parts) {
    part.core->extents().take_back(std::exchange(part.extents, {}));
    part.handles.clear();
    part.find_missing(); // an unmap that failed left some
  }
}

} // namespace stillwake
