// SPDX-License-Identifier: Apache-2.0
#include "shard/extent_map.h"

#include <algorithm>

namespace stillwake {
namespace {

Pages smaller(Pages a, Pages b) { return std::min(a, b); }

Error out_of_memory(Device& device, Pages needed, Error error) {
  if (auto memory = device.memory_info()) {
    const Bytes free = memory->first;
    error.message = "needed " + exact(Bytes(needed)) + " of device " + std::to_string(device.index().value()) +
                    ", free " + exact(free) + " of " + readable(memory->second) + ", largest possible " +
                    readable(Bytes(pages_below(free)));
  }
  return error;
}

} // namespace

Result<std::vector<Physical>> take_pages(Device& device, Pages count) {
  std::vector<Physical> handles;
  Pages largest = kLargestExtent;
  Pages missing = count;
  while (missing > Pages(0)) {
    const Pages size = smaller(largest, missing);
    auto handle = Physical::create(device, size);
    if (handle) {
      handles.push_back(std::move(*handle));
      missing -= size;
      continue;
    }
    if (handle.error().code != ErrorCode::kOutOfDeviceMemory) {
      return failure(std::move(handle).error());
    }
    // Smaller handles help when the free memory is in pieces, never when there is too little of it.
    const auto memory = device.memory_info();
    const bool enough = memory && memory->first >= Bytes(missing);
    if (size == Pages(1) || !enough) {
      handles.clear();
      return failure(out_of_memory(device, count, std::move(handle).error()));
    }
    largest = Pages(size.count() / 2);
  }
  return handles;
}

Result<std::vector<Physical>> take_run(Device& device, Pages count, BlockKind kind) {
  if (kind != BlockKind::kOneHandle) {
    return take_pages(device, count);
  }
  auto handle = Physical::create(device, count);
  if (!handle) {
    Error error = std::move(handle).error();
    return failure(error.code == ErrorCode::kOutOfDeviceMemory ? out_of_memory(device, count, std::move(error))
                                                               : error);
  }
  std::vector<Physical> handles;
  handles.push_back(std::move(*handle));
  return handles;
}

ExtentMap::ExtentMap(Reservation& reservation, std::vector<DeviceIndex> devices)
    : reservation_(reservation), devices_(std::move(devices)) {}

Result<PageRange> ExtentMap::grow(PageRange hole, Pages at_least, BlockKind kind) {
  STILLWAKE_CHECK_LE(at_least, hole.count);
  std::vector<Physical> handles;
  if (kind == BlockKind::kOneHandle) {
    auto taken = take_run(reservation_.device(), at_least, kind);
    STILLWAKE_TRY(taken);
    handles = std::move(*taken);
  } else {
    const Pages wanted = std::max(at_least, smaller(next_growth_, hole.count));
    auto taken = take_pages(reservation_.device(), wanted);
    if (!taken && wanted > at_least && taken.error().code == ErrorCode::kOutOfDeviceMemory) {
      taken = take_pages(reservation_.device(), at_least);
    }
    STILLWAKE_TRY(taken);
    handles = std::move(*taken);
    next_growth_ = smaller(next_growth_ + next_growth_, kLargestGrowth);
  }
  auto extents = place(hole.first, std::move(handles));
  STILLWAKE_TRY(extents);
  const PageRange backed{hole.first, extents->back().pages.end() - hole.first};
  add(std::move(*extents));
  return backed;
}

Result<std::vector<Extent>> ExtentMap::place(Pages first, std::vector<Physical> handles) {
  std::vector<Extent> extents;
  Cleanup undo([&] { take_back(std::move(extents)); });
  Pages next = first;
  for (Physical& handle : handles) {
    auto mapping = reservation_.map(next, handle);
    STILLWAKE_TRY(mapping);
    const PageRange pages{next, handle.pages()};
    extents.push_back({pages, std::move(handle), std::move(*mapping)});
    next = pages.end();
  }
  STILLWAKE_TRY(reservation_.allow_access({first, next - first}, devices_));
  undo.cancel();
  return extents;
}

void ExtentMap::add(std::vector<Extent> extents) {
  for (Extent& extent : extents) {
    extents_.push_back(std::move(extent));
  }
  std::sort(extents_.begin(), extents_.end(),
            [](const Extent& a, const Extent& b) { return a.pages.first < b.pages.first; });
  count();
}

void ExtentMap::take_back(std::vector<Extent> extents) {
  std::vector<Extent> kept;
  for (Extent& extent : extents) {
    if (!extent.mapping.unmap()) {
      kept.push_back(std::move(extent));
    } else if (!extent.physical.release()) {
      unreleased_.push_back(std::move(extent.physical));
    }
  }
  add(std::move(kept));
}

// The end of the run of neighbours that starts at `begin`.
std::size_t ExtentMap::end_of_run(std::size_t begin) const {
  std::size_t end = begin + 1;
  while (end < extents_.size() && extents_[end - 1].pages.end() == extents_[end].pages.first) {
    ++end;
  }
  return end;
}

Result<void> ExtentMap::unmap_run(std::size_t begin, std::size_t end) {
  std::vector<Mapping*> mappings;
  for (std::size_t i = begin; i < end; ++i) {
    mappings.push_back(&extents_[i].mapping);
  }
  return Mapping::unmap_neighbours(mappings);
}

Result<void> ExtentMap::unmap_all(const std::string& shard, bool* any_unmapped, Report& report) {
  std::vector<Extent> kept;
  for (std::size_t begin = 0; begin < extents_.size();) {
    const std::size_t end = end_of_run(begin);
    auto unmapped = unmap_run(begin, end);
    if (!unmapped && !*any_unmapped) {
      return unmapped; // nothing was unmapped yet: the map is as it was
    }
    *any_unmapped = true;
    for (; begin < end; ++begin) {
      Extent& extent = extents_[begin];
      // After a run that would not go as one, each extent is tried by itself: what will go, goes.
      if (const auto alone = extent.mapping ? extent.mapping.unmap() : Result<void>(); !alone) {
        const Bytes size(extent.pages.count);
        report.leftovers.push_back({shard, extent.mapping.address().pointer(), size, alone.error().describe()});
        report.not_freed += size;
        kept.push_back(std::move(extent));
        continue;
      }
      unreleased_.push_back(std::move(extent.physical));
    }
  }
  extents_ = std::move(kept);
  count();
  return {};
}

void ExtentMap::release_all(const std::string& shard, Report& report) {
  std::vector<Physical> unreleased;
  for (Physical& handle : unreleased_) {
    const Bytes size(handle.pages());
    if (auto released = handle.release(); !released) {
      report.leftovers.push_back({shard, nullptr, size, released.error().describe()});
      report.not_freed += size;
      unreleased.push_back(std::move(handle));
      continue;
    }
    report.freed += size;
  }
  unreleased_ = std::move(unreleased);
  count();
}

Result<std::pair<PageRange, Physical>> ExtentMap::detach_first() {
  STILLWAKE_CHECK(!extents_.empty());
  Extent& extent = extents_.front();
  STILLWAKE_TRY(extent.mapping.unmap());
  std::pair<PageRange, Physical> detached{extent.pages, std::move(extent.physical)};
  extents_.erase(extents_.begin());
  count();
  return detached;
}

void ExtentMap::keep_unreleased(std::vector<Physical> handles) {
  for (Physical& handle : handles) {
    unreleased_.push_back(std::move(handle));
  }
  count();
}

bool ExtentMap::is_backed(Pages page) const {
  auto next = std::upper_bound(extents_.begin(), extents_.end(), page,
                               [](Pages wanted, const Extent& extent) { return wanted < extent.pages.first; });
  return next != extents_.begin() && std::prev(next)->pages.contains(page);
}

void ExtentMap::count() {
  Pages mapped;
  for (const Extent& extent : extents_) {
    mapped += extent.pages.count;
  }
  mapped_pages_ = mapped.count();
  handles_ = extents_.size() + unreleased_.size();
}

} // namespace stillwake
