// SPDX-License-Identifier: Apache-2.0
// When free space of a SpaceMap becomes safe, and for whom.
#include "allocator/heap/space_map.h"

namespace stillwake {

void SpaceMap::change_safety(Unit start, Safety safety) {
  Place place = remove(places_.find(start));
  place.safety = safety;
  put(start, place);
}

/// Calls `change` with the safety of every waiting place; what it answers is the new one. Places join as they change,
/// so one that was looked at may be gone into its neighbour by the time its turn comes.
template <class Change> void SpaceMap::change_waiting(Change change) {
  const std::vector<Unit> starts(waiting_.begin(), waiting_.end());
  for (const Unit start : starts) {
    if (!waiting_.contains(start)) {
      continue;
    }
    const Safety old = places_.find(start)->second.safety;
    const Safety changed = change(old);
    if (!(changed == old)) {
      change_safety(start, changed);
    }
  }
}

void SpaceMap::begin_epoch(Epoch epoch, bool streams) {
  change_waiting([&](Safety safety) {
    if (safety.epoch == 0 && (streams || safety.who == Safety::Who::kNobody)) {
      safety.epoch = epoch;
    }
    return safety;
  });
}

void SpaceMap::end_epoch(Epoch epoch) {
  change_waiting([&](Safety safety) { return safety.epoch == epoch ? Safety{} : safety; });
}

void SpaceMap::end_all_epochs() {
  change_waiting([](Safety) { return Safety{}; });
  std::erase_if(one_handle_, [&](const auto& extent) {
    const auto place = places_.find(extent.first);
    return place == places_.end() || place->second.kind != Kind::kBlock || place->second.units != extent.second;
  });
}

std::optional<UnitRange> SpaceMap::find_unsafe(Unit units, BlockKind kind) const {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  const auto fits = [&]() -> std::optional<UnitRange> {
    if (kind == BlockKind::kShared) {
      return end - start >= units ? std::optional(UnitRange{static_cast<Unit>(start), units}) : std::nullopt;
    }
    for (auto extent = one_handle_.lower_bound(static_cast<Unit>(start));
         extent != one_handle_.end() && extent->first < end; ++extent) {
      if (extent->second == units && std::uint64_t{extent->first} + units <= end) {
        return UnitRange{extent->first, units};
      }
    }
    return std::nullopt;
  };
  for (const auto& [at, place] : places_) {
    if (place.kind == Kind::kFree) {
      start = end == at ? start : at;
      end = std::uint64_t{at} + place.units;
    } else {
      if (const auto range = fits()) {
        return range;
      }
      start = end = std::uint64_t{at} + place.units;
    }
  }
  return fits();
}

/// Whole places: the last one may reach beyond the range.
void SpaceMap::make_safe_for(UnitRange range, Stream stream, Epoch epoch) {
  const std::uint64_t end = std::uint64_t{range.start} + range.units;
  std::uint64_t at = range.start;
  while (at < end) {
    const auto place = place_of(static_cast<Unit>(at));
    STILLWAKE_CHECK(place->second.kind == Kind::kFree);
    const Unit start = place->first;
    at = std::uint64_t{start} + place->second.units;
    change_safety(start, Safety{Safety::Who::kStream, stream, epoch});
  }
}

} // namespace stillwake
