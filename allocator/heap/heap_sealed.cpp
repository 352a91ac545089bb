// SPDX-License-Identifier: Apache-2.0
// What a Heap does for a transition, and its own check.
#include "allocator/heap/heap_impl.h"

namespace stillwake {

void Heap::Impl::seal() {
  CentralLock lock(central_);
  STILLWAKE_CHECK(!sealed_);
  STILLWAKE_CHECK(grower_ != std::this_thread::get_id()); // from inside the source: nobody could ever go on
  grown_.wait(lock, [&] { return grower_ == std::thread::id(); });
  sealed_ = true;
  for (Stripe& stripe : stripes_.all()) {
    const std::lock_guard stripe_lock(stripe.lock);
    stripe.sealed = true;
  }
}

void Heap::Impl::unseal() {
  const CentralLock lock(central_);
  STILLWAKE_CHECK(sealed_);
  sealed_ = false;
  carry_out_notes();
  for (Stripe& stripe : stripes_.all()) {
    const std::lock_guard stripe_lock(stripe.lock);
    stripe.sealed = false;
  }
}

void Heap::Impl::drain_queue() {
  const CentralLock lock(central_);
  STILLWAKE_CHECK(sealed_);
  carry_out_notes();
}

void Heap::Impl::consolidate(bool quiesced) {
  const CentralLock lock(central_);
  STILLWAKE_CHECK(sealed_);
  give_up_caches();
  if (quiesced) {
    epochs_.close_all();
    space_.end_all_epochs();
  }
}

std::vector<LiveBlock> Heap::Impl::live_blocks() const {
  const CentralLock lock(central_);
  STILLWAKE_CHECK(sealed_);
  std::vector<LiveBlock> blocks;
  for (const auto& [start, place] : space_.places()) {
    if (place.kind == SpaceMap::Kind::kBlock && table_.record(table_.at(start)).state() != BlockState::kCached) {
      blocks.push_back(describe(start));
    }
  }
  return blocks;
}

std::vector<PageRange> Heap::Impl::unused_pages() const {
  const CentralLock lock(central_);
  STILLWAKE_CHECK(sealed_);
  return space_.unused_pages();
}

void Heap::Impl::note_unbacked(PageRange pages) {
  const CentralLock lock(central_);
  STILLWAKE_CHECK(sealed_);
  space_.note_unbacked(pages);
}

void Heap::Impl::note_backed(PageRange pages) {
  const CentralLock lock(central_);
  STILLWAKE_CHECK(sealed_);
  space_.note_backed(pages);
}

void Heap::Impl::check_invariants() const {
  CentralLock lock(central_);
  grown_.wait(lock, [&] { return grower_ == std::thread::id(); });
  // With every stripe held no block changes its state: what a record says and what is counted belong together.
  std::vector<std::unique_lock<SpinLock>> stripe_locks;
  for (Stripe& stripe : stripes_.all()) {
    stripe_locks.emplace_back(stripe.lock);
  }
  space_.check_invariants();
  std::int64_t live_blocks = 0;
  std::int64_t live_units = 0;
  std::uint64_t cached_blocks = 0;
  std::uint64_t cached_units = 0;
  std::uint64_t freed_blocks = 0;
  for (const auto& [start, place] : space_.places()) {
    STILLWAKE_CHECK(place.kind != SpaceMap::Kind::kGrowing);
    const RecordIndex index = table_.valid() ? table_.at(start) : 0;
    if (place.kind != SpaceMap::Kind::kBlock) {
      STILLWAKE_CHECK_EQ(index, 0u);
      continue;
    }
    STILLWAKE_CHECK_NE(index, 0u);
    const BlockRecord& record = table_.record(index);
    STILLWAKE_CHECK_EQ(record.unit(), start);
    STILLWAKE_CHECK_EQ(record.units, place.units);
    switch (record.state()) {
    case BlockState::kLive:
      ++live_blocks;
      live_units += record.units;
      break;
    case BlockState::kCached:
      ++cached_blocks;
      cached_units += record.units;
      break;
    case BlockState::kFreed: ++freed_blocks; break;
    case BlockState::kNone: STILLWAKE_CHECK_NE(record.state(), BlockState::kNone);
    }
  }
  for (Stripe& stripe : stripes_.all()) {
    live_blocks -= stripe.live_blocks;
    live_units -= stripe.live_units;
    cached_blocks -= stripe.cached_blocks;
    cached_units -= stripe.cached_units;
  }
  STILLWAKE_CHECK_EQ(live_blocks, 0);
  STILLWAKE_CHECK_EQ(live_units, 0);
  STILLWAKE_CHECK_EQ(cached_blocks, 0u);
  STILLWAKE_CHECK_EQ(cached_units, 0u);
  STILLWAKE_CHECK_EQ(freed_blocks, notes_.size());
}

} // namespace stillwake
