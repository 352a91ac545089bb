// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/space_map.h"

#include <algorithm>

namespace stillwake {

SpaceMap::SpaceMap(Unit units) : units_(units) { put(0, Place{units, Kind::kHole, {}}); }

/// What two neighbours have in common if they may be one place: free space of one stream waits for the later epoch (its
/// own stream may use all of it meanwhile); space that nobody may use does not, or a steady flow of frees would keep an
/// early one waiting for ever.
std::optional<Safety> SpaceMap::joined(const Place& a, const Place& b) {
  if (a.kind != b.kind || (a.kind != Kind::kFree && a.kind != Kind::kHole)) {
    return std::nullopt;
  }
  if (a.safety == b.safety) {
    return a.safety;
  }
  if (a.safety.who == Safety::Who::kStream && b.safety.who == Safety::Who::kStream &&
      a.safety.stream == b.safety.stream) {
    Safety safety = a.safety;
    const bool unrecorded = a.safety.epoch == 0 || b.safety.epoch == 0;
    safety.epoch = unrecorded ? 0 : std::max(a.safety.epoch, b.safety.epoch);
    return safety;
  }
  return std::nullopt;
}

SpaceMap::BySize* SpaceMap::sizes_of(const Safety& safety) {
  switch (safety.who) {
  case Safety::Who::kAnyone: return &anyone_;
  case Safety::Who::kStream: return &of_stream_[safety.stream];
  case Safety::Who::kNobody: break;
  }
  return nullptr;
}

void SpaceMap::enter(Unit start, const Place& place) {
  if (place.kind == Kind::kHole) {
    holes_.insert(start);
  }
  if (place.kind != Kind::kFree) {
    return;
  }
  if (BySize* sizes = sizes_of(place.safety)) {
    sizes->emplace(place.units, start);
  }
  if (place.safety.who != Safety::Who::kAnyone) {
    waiting_.insert(start);
    unrecorded_[place.safety.who == Safety::Who::kNobody] += place.safety.epoch == 0 ? 1 : 0;
  }
  (place.safety.who == Safety::Who::kNobody ? parked_units_ : free_units_) += place.units;
}

void SpaceMap::leave(Unit start, const Place& place) {
  if (place.kind == Kind::kHole) {
    holes_.erase(start);
  }
  if (place.kind != Kind::kFree) {
    return;
  }
  if (BySize* sizes = sizes_of(place.safety)) {
    sizes->erase({place.units, start});
    if (place.safety.who == Safety::Who::kStream && sizes->empty()) {
      of_stream_.erase(place.safety.stream);
    }
  }
  if (place.safety.who != Safety::Who::kAnyone) {
    waiting_.erase(start);
    unrecorded_[place.safety.who == Safety::Who::kNobody] -= place.safety.epoch == 0 ? 1 : 0;
  }
  (place.safety.who == Safety::Who::kNobody ? parked_units_ : free_units_) -= place.units;
}

SpaceMap::Place SpaceMap::remove(Iterator at) {
  const Place place = at->second;
  leave(at->first, place);
  places_.erase(at);
  return place;
}

void SpaceMap::put(Unit start, Place place) {
  Iterator next = places_.lower_bound(start);
  if (next != places_.end()) {
    const bool touches = start + place.units == next->first;
    if (const auto safety = joined(place, next->second); touches && safety) {
      place.units += next->second.units;
      place.safety = *safety;
      const Iterator after = std::next(next);
      remove(next);
      next = after;
    }
  }
  if (next != places_.begin()) {
    const Iterator before = std::prev(next);
    const bool touches = before->first + before->second.units == start; // not while a place is being carved
    if (const auto safety = joined(before->second, place); touches && safety) {
      start = before->first;
      place.units += before->second.units;
      place.safety = *safety;
      remove(before);
    }
  }
  places_.emplace_hint(next, start, place);
  enter(start, place);
}

void SpaceMap::carve(Iterator at, Unit start, Unit units, Kind kind) {
  const Unit from = at->first;
  const Place whole = remove(at);
  STILLWAKE_CHECK_LE(from, start);
  STILLWAKE_CHECK_LE(std::uint64_t{start} + units, std::uint64_t{from} + whole.units);
  put(start, Place{units, kind, {}});
  if (start != from) {
    put(from, Place{start - from, whole.kind, whole.safety});
  }
  if (const Unit rest = whole.units - (start - from) - units; rest != 0) {
    put(start + units, Place{rest, whole.kind, whole.safety});
  }
}

SpaceMap::Iterator SpaceMap::place_of(Unit unit) { return std::prev(places_.upper_bound(unit)); }

std::optional<Unit> SpaceMap::block_at(Unit unit) const {
  const auto place = std::prev(places_.upper_bound(unit));
  return place->second.kind == Kind::kBlock ? std::optional(place->first) : std::nullopt;
}

std::optional<Unit> SpaceMap::take(Unit units, Stream stream) {
  auto best = anyone_.lower_bound({units, 0});
  bool found = best != anyone_.end();
  if (const auto own = of_stream_.find(stream); own != of_stream_.end()) {
    const auto candidate = own->second.lower_bound({units, 0});
    if (candidate != own->second.end() && (!found || *candidate < *best)) {
      best = candidate;
      found = true;
    }
  }
  if (!found) {
    return std::nullopt;
  }
  const Unit start = best->second;
  carve(places_.find(start), start, units, Kind::kBlock);
  return start;
}

std::optional<Unit> SpaceMap::take_one_handle(Unit units, Stream stream) {
  for (const auto& [start, extent] : one_handle_) {
    if (extent != units) {
      continue;
    }
    const Iterator at = place_of(start);
    if (at->second.kind == Kind::kFree && at->second.safety.usable_by(stream) &&
        std::uint64_t{at->first} + at->second.units >= std::uint64_t{start} + units) {
      carve(at, start, units, Kind::kBlock);
      return start;
    }
  }
  return std::nullopt;
}

void SpaceMap::release(Unit start, Safety safety) {
  const Iterator at = places_.find(start);
  STILLWAKE_CHECK(at != places_.end() && at->second.kind == Kind::kBlock);
  Place place = remove(at);
  place.kind = Kind::kFree;
  place.safety = safety;
  put(start, place);
}

void SpaceMap::check_invariants() const {
  std::uint64_t next = 0;
  std::uint64_t free = 0;
  std::uint64_t parked = 0;
  std::size_t by_size = 0;
  std::size_t waiting = 0;
  std::size_t holes = 0;
  std::size_t unrecorded[2] = {0, 0};
  const Place* before = nullptr;
  for (const auto& [start, place] : places_) {
    STILLWAKE_CHECK_EQ(std::uint64_t{start}, next); // no gap, no overlap
    STILLWAKE_CHECK_NE(place.units, 0u);
    STILLWAKE_CHECK(before == nullptr || !joined(*before, place));
    if (place.kind == Kind::kHole) {
      STILLWAKE_CHECK_EQ(start % kPageUnits, 0u);
      STILLWAKE_CHECK_EQ(place.units % kPageUnits, 0u);
      STILLWAKE_CHECK(holes_.contains(start));
      ++holes;
    }
    if (place.kind == Kind::kFree) {
      const bool anyone = place.safety.who == Safety::Who::kAnyone;
      const bool nobody = place.safety.who == Safety::Who::kNobody;
      (nobody ? parked : free) += place.units;
      STILLWAKE_CHECK_EQ(waiting_.contains(start), !anyone);
      waiting += anyone ? 0 : 1;
      unrecorded[nobody] += !anyone && place.safety.epoch == 0 ? 1 : 0;
      if (!nobody) {
        const BySize& sizes = anyone ? anyone_ : of_stream_.at(place.safety.stream);
        STILLWAKE_CHECK(sizes.contains({place.units, start}));
        ++by_size;
      }
    }
    next += place.units;
    before = &place;
  }
  STILLWAKE_CHECK_EQ(next, std::uint64_t{units_});
  STILLWAKE_CHECK_EQ(free, free_units_);
  STILLWAKE_CHECK_EQ(parked, parked_units_);
  STILLWAKE_CHECK_EQ(waiting, waiting_.size());
  STILLWAKE_CHECK_EQ(unrecorded[0], unrecorded_[0]);
  STILLWAKE_CHECK_EQ(unrecorded[1], unrecorded_[1]);
  STILLWAKE_CHECK_EQ(holes, holes_.size());
  std::size_t listed = anyone_.size();
  for (const auto& [stream, sizes] : of_stream_) {
    STILLWAKE_CHECK(!sizes.empty());
    listed += sizes.size();
  }
  STILLWAKE_CHECK_EQ(by_size, listed);
}

} // namespace stillwake
