// SPDX-License-Identifier: Apache-2.0
// How a SpaceMap changes size: growth into a hole, and whole pages that come and go while the heap is sealed.
#include "allocator/heap/space_map.h"

namespace stillwake {
namespace {

PageRange pages_of(Unit start, Unit units) { return {Pages(start / kPageUnits), Pages(units / kPageUnits)}; }
Unit units_of(Pages pages) { return static_cast<Unit>(pages.count() * kPageUnits); }

} // namespace

std::optional<SpaceMap::Growth> SpaceMap::begin_growth(Unit units, Stream stream, BlockKind kind) {
  for (const Unit start : holes_) {
    const Iterator hole = places_.find(start);
    Growth growth;
    growth.start = start;
    growth.units = units;
    growth.kind = kind;
    growth.hole = pages_of(start, hole->second.units);
    const bool first = hole == places_.begin();
    if (kind == BlockKind::kShared && !first) {
      const auto& [tail_start, tail] = *std::prev(hole);
      if (tail.kind == Kind::kFree && tail.safety.usable_by(stream)) {
        growth.start = tail_start;
        growth.tail = tail.units;
        growth.tail_safety = tail.safety;
      }
    }
    growth.at_least = pages_holding(bytes_of(units - growth.tail));
    if (growth.at_least <= growth.hole.count) {
      const Unit whole = growth.tail + hole->second.units;
      remove(hole);
      if (growth.tail != 0) {
        remove(places_.find(growth.start));
      }
      put(growth.start, Place{whole, Kind::kGrowing, {}});
      return growth;
    }
  }
  return std::nullopt;
}

void SpaceMap::end_growth(const Growth& growth, Pages backed) {
  STILLWAKE_CHECK_LE(growth.at_least.count(), backed.count());
  STILLWAKE_CHECK_LE(backed.count(), growth.hole.count.count());
  STILLWAKE_CHECK(growth.kind == BlockKind::kShared || backed == growth.at_least);
  remove(places_.find(growth.start));
  put(growth.start, Place{growth.units, Kind::kBlock, {}});
  const Unit hole = growth.start + growth.tail;
  const Unit end = growth.start + growth.units;
  if (const Unit rest = hole + units_of(backed) - end; rest != 0) {
    put(end, Place{rest, Kind::kFree, {}});
  }
  if (const Pages rest = growth.hole.count - backed; rest != Pages(0)) {
    put(hole + units_of(backed), Place{units_of(rest), Kind::kHole, {}});
  }
  if (growth.kind == BlockKind::kOneHandle) {
    one_handle_[growth.start] = growth.units;
  }
}

void SpaceMap::abandon_growth(const Growth& growth) {
  remove(places_.find(growth.start));
  put(growth.start + growth.tail, Place{units_of(growth.hole.count), Kind::kHole, {}});
  if (growth.tail != 0) {
    put(growth.start, Place{growth.tail, Kind::kFree, growth.tail_safety});
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
