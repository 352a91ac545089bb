// SPDX-License-Identifier: Apache-2.0
// How a SpaceMap changes size: growth into a hole, and whole pages that come and go while the heap is sealed.
#include "allocator/heap/space_map.h"

namespace stillwake {
namespace {

PageRange pages_of(Unit start, Unit units) { return {Pages(start / kPageUnits), Pages(units / kPageUnits)}; }
Unit units_of(Pages pages) { return static_cast<Unit>(pages.count() * kPageUnits); }

} // namespace

std::optional<SpaceMap::Growth> SpaceMap::begin_growth(Unit units, Stream stream, BlockKind kind) {
  const auto usable = [&](const Place& place) {
    return kind == BlockKind::kShared && place.kind == Kind::kFree && place.safety.usable_by(stream);
  };
  for (const Unit start : holes_) {
    const Iterator hole = places_.find(start);
    Growth growth;
    growth.start = start;
    growth.units = units;
    growth.kind = kind;
    growth.hole = pages_of(start, hole->second.units);
    if (hole != places_.begin() && usable(std::prev(hole)->second)) {
      const auto& [tail_start, tail] = *std::prev(hole);
      growth.start = tail_start;
      growth.tail = tail.units;
      growth.tail_safety = tail.safety;
    }
    growth.at_least = pages_holding(bytes_of(units - growth.tail));
    if (growth.at_least > growth.hole.count) {
      // A hole inside what was one free range: a sleep took its pages away.
      const Iterator next = std::next(hole);
      if (next == places_.end() || !usable(next->second) ||
          std::uint64_t{growth.tail} + hole->second.units + next->second.units < units) {
        continue;
      }
      growth.at_least = growth.hole.count;
      growth.head = next->second.units;
      growth.head_safety = next->second.safety;
      remove(next);
    }
    const Unit whole = growth.tail + hole->second.units + growth.head;
    remove(hole);
    if (growth.tail != 0) {
      remove(places_.find(growth.start));
    }
    put(growth.start, Place{whole, Kind::kGrowing, {}});
    return growth;
  }
  return std::nullopt;
}

void SpaceMap::end_growth(const Growth& growth, Pages backed) {
  STILLWAKE_CHECK_LE(growth.at_least.count(), backed.count());
  STILLWAKE_CHECK_LE(backed.count(), growth.hole.count.count());
  STILLWAKE_CHECK(growth.kind == BlockKind::kShared || backed == growth.at_least);
  remove(places_.find(growth.start));
  put(growth.start, Place{growth.units, Kind::kBlock, {}});
  const Unit end = growth.start + growth.units;
  const Unit backed_end = growth.start + growth.tail + units_of(backed);
  if (end < backed_end) {
    put(end, Place{backed_end - end, Kind::kFree, {}});
  }
  const Unit hole_end = growth.start + growth.tail + units_of(growth.hole.count);
  if (backed_end < hole_end) {
    put(backed_end, Place{hole_end - backed_end, Kind::kHole, {}});
  }
  if (growth.head != 0 && end < hole_end + growth.head) {
    put(end, Place{hole_end + growth.head - end, Kind::kFree, growth.head_safety});
  }
  if (growth.kind == BlockKind::kOneHandle) {
    one_handle_[growth.start] = growth.units;
  }
}

void SpaceMap::abandon_growth(const Growth& growth) {
  remove(places_.find(growth.start));
  const Unit hole = growth.start + growth.tail;
  put(hole, Place{units_of(growth.hole.count), Kind::kHole, {}});
  if (growth.tail != 0) {
    put(growth.start, Place{growth.tail, Kind::kFree, growth.tail_safety});
  }
  if (growth.head != 0) {
    put(hole + units_of(growth.hole.count), Place{growth.head, Kind::kFree, growth.head_safety});
  }
}

std::vector<PageRange> SpaceMap::unused_pages() const {
  std::vector<PageRange> ranges;
  for (const auto& [start, place] : places_) {
    if (place.kind != Kind::kFree || place.safety.who != Safety::Who::kAnyone) {
      continue;
    }
    const std::uint64_t first = (std::uint64_t{start} + kPageUnits - 1) / kPageUnits;
    const std::uint64_t end = (std::uint64_t{start} + place.units) / kPageUnits;
    if (first < end) {
      ranges.push_back({Pages(first), Pages(end - first)});
    }
  }
  return ranges;
}

void SpaceMap::note_unbacked(PageRange pages) {
  const Unit start = units_of(pages.first);
  const Unit units = units_of(pages.count);
  const Iterator at = place_of(start);
  STILLWAKE_CHECK(at->second.kind == Kind::kFree && at->second.safety.who == Safety::Who::kAnyone);
  carve(at, start, units, Kind::kHole);
  std::erase_if(one_handle_, [&](const auto& extent) {
    return extent.first < start + units && start < extent.first + extent.second;
  });
}

void SpaceMap::note_backed(PageRange pages) {
  const Iterator at = place_of(units_of(pages.first));
  STILLWAKE_CHECK(at->second.kind == Kind::kHole);
  carve(at, units_of(pages.first), units_of(pages.count), Kind::kFree);
}

} // namespace stillwake
