// SPDX-License-Identifier: Apache-2.0
#include "shard/shard_core.h"

#include "shard/option_checks.h"
#include "shard/quiesce.h"
#include "shard/waking.h"

#include <algorithm>

namespace stillwake {
namespace {

// The mirror may keep so many pages more than are live before it is cut to size.
constexpr Pages kMirrorSlack{1};

bool is_busy(const Result<void*>& block) { return !block && block.error().code == ErrorCode::kBusy; }

std::vector<DeviceIndex> indices(const std::vector<Device*>& devices) {
  std::vector<DeviceIndex> all;
  all.reserve(devices.size());
  for (Device* device : devices) {
    all.push_back(device->index());
  }
  return all;
}

} // namespace

Error state_error(const ShardCore& shard, ShardState state, const char* what) {
  Error error;
  error.message = std::string(what) + ": shard '" + shard.name() + "' is " + to_string(state);
  switch (state) {
  case ShardState::kAsleep:
    error.code = ErrorCode::kAsleep;
    error.message += "; wake it first";
    break;
  case ShardState::kCorrupted:
    error.code = ErrorCode::kCorrupted;
    error.message += "; its last wake did not restore what was saved";
    break;
  case ShardState::kLost:
    error.code = ErrorCode::kLost;
    error.message += "; its device's context is dead";
    break;
  default: error.code = ErrorCode::kBusy; break;
  }
  return error;
}

Result<std::unique_ptr<ShardCore>> ShardCore::create(Driver& driver, ShardOptions options) {
  STILLWAKE_TRY(check_options(options));
  std::vector<Device*> devices;
  auto own = driver.device(options.device);
  STILLWAKE_TRY(own);
  devices.push_back(*own);
  for (DeviceIndex peer : options.peers) {
    auto device = driver.device(peer);
    STILLWAKE_TRY(device);
    if (std::find(devices.begin(), devices.end(), *device) == devices.end()) {
      STILLWAKE_TRY(check_peer(options.name, **own, **device));
      devices.push_back(*device);
    }
  }
  Registry& registry = Registry::of(driver);
  auto engine = registry.engine(driver, **own);
  STILLWAKE_TRY(engine);
  auto size = reservation_size(options, **own);
  STILLWAKE_TRY(size);
  auto reservation = Reservation::create(**own, *size);
  STILLWAKE_TRY(reservation);
  auto mirror = Mirror::create(registry.arena(), **own, *size);
  STILLWAKE_TRY(mirror);
  std::unique_ptr<ShardCore> core(new ShardCore(registry, std::move(options), std::move(devices), **engine,
                                                std::move(*reservation), std::move(*mirror)));
  registry.add(*core);
  return core;
}

ShardCore::ShardCore(Registry& registry, ShardOptions options, std::vector<Device*> devices, TransferEngine& engine,
                     Reservation reservation, std::unique_ptr<Mirror> mirror)
    : registry_(registry), options_(std::move(options)), device_(*devices.front()), devices_(std::move(devices)),
      engine_(engine), reservation_(std::move(reservation)), extents_(reservation_, indices(devices_)),
      mirror_(std::move(mirror)), pages_(pages_below(reservation_.size())),
      heap_(std::make_unique<Heap>(device_, reservation_.base(), reservation_.size(), *this)) {}

ShardCore::~ShardCore() {
  if (auto waking = this->waking()) {
    waking->give_up(); // the verdict stays with the tickets
  }
  const TimePoint begin = std::chrono::steady_clock::now();
  for (bool told = false; !begin_transition();) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (!told && std::chrono::steady_clock::now() - begin > std::chrono::seconds(1)) {
      told = true;
      const std::string text = "shard '" + options_.name + "' is being destroyed and waits for a transition of it to " +
                               "end; a staged half must be committed, abandoned or destroyed before its shards";
      device_.table().log(LogLevel::kError, text.c_str());
    }
  }
  registry_.remove(*this);
  const HeapStats heap = heap_->stats();
  if (heap.live_blocks > 0) {
    const std::string text = "shard '" + options_.name + "' is destroyed with " + std::to_string(heap.live_blocks) +
                             " live blocks of " + readable(heap.live) + "; their addresses end here";
    device_.table().log(LogLevel::kWarning, text.c_str());
  }
  if (state_ != ShardState::kAsleep && state_ != ShardState::kLost) {
    for (Device* device : devices_) {
      try_twice(device_.table(), [device] { return quiesce(*device, std::nullopt); });
    }
  }
}

bool ShardCore::is_known(Stream stream) const {
  return stream == nullptr || std::any_of(known_streams_.begin(), known_streams_.end(), [stream](const auto& known) {
           return known.load(std::memory_order_relaxed) == stream;
         });
}

Result<void> ShardCore::get_to_know(Stream stream, const char* doing) {
  auto owns = device_.owns(stream, doing);
  STILLWAKE_TRY(owns);
  if (!*owns) {
    return failure(ErrorCode::kInvalidArgument, std::string(doing) + ": stream " + hexadecimal(stream) +
                                                    " is not one of device " + std::to_string(device_.index().value()) +
                                                    ", where shard '" + name() + "' lives; give one of that device");
  }
  known_streams_[next_known_++ % known_streams_.size()].store(stream, std::memory_order_relaxed);
  return {};
}

Result<void*> ShardCore::allocate(Bytes size, Stream stream, BlockKind kind) {
  if (kind != BlockKind::kShared && kind != BlockKind::kOneHandle) [[unlikely]] {
    return failure(ErrorCode::kInvalidArgument, "shard '" + options_.name + "': a block of kind " +
                                                    std::to_string(static_cast<int>(kind)) +
                                                    ", which is none of the enum's; use a named one");
  }
  if (!is_known(stream)) [[unlikely]] {
    STILLWAKE_TRY(get_to_know(stream, "allocating"));
  }
  auto block = heap_->allocate(size, stream, kind);
  if (block && options_.trust) {
    note_unsaved(*block, size);
  }
  if (block && state_.load(std::memory_order_acquire) == ShardState::kAwake) [[likely]] {
    return block;
  }
  // A prepare looks at the blocks for a moment: that is no reason to refuse. `patience` covers the end of that moment
  // and the begin of a sleep, which is a reason.
  for (int patience = 0; is_busy(block) && state_ == ShardState::kAwake && patience < 100;
       patience = looking_ ? 0 : patience + 1) {
    std::this_thread::yield();
    block = heap_->allocate(size, stream, kind);
    if (block && options_.trust) {
      note_unsaved(*block, size);
    }
  }
  return allocate_unusual(std::move(block), stream);
}

Result<void*> ShardCore::allocate_unusual(Result<void*> block, Stream stream) {
  Result<void> usable;
  if (block && state_ == ShardState::kWaking) {
    // The block may lie in a page that is still on its way in: its stream waits for all of the shard. A stream that is
    // being captured is refused here, before the wake is asked how far it is: the question would spoil the capture.
    if (auto waking = this->waking()) {
      usable = waking->wait_shard(*this, stream);
    }
  }
  if (!usable) {
    STILLWAKE_CHECK(heap_->free(*block, stream).has_value());
    return failure(std::move(usable).error());
  }
  const ShardState now = state();
  if (!block) {
    return block.error().code == ErrorCode::kBusy && now != ShardState::kAwake
               ? Result<void*>(failure(state_error(*this, now, "allocating")))
               : block;
  }
  if (now == ShardState::kCorrupted || now == ShardState::kLost) {
    usable = failure(state_error(*this, now, "allocating"));
  }
  if (!usable) {
    STILLWAKE_CHECK(heap_->free(*block, stream).has_value());
    return failure(std::move(usable).error());
  }
  return block;
}

void ShardCore::note_unsaved(const void* block, Bytes size) {
  const Bytes offset = DeviceAddress(block) - reservation_.base();
  const RankedLock lock(mutex_);
  unsaved_.push_back({pages_below(offset), pages_holding(offset + size) - pages_below(offset)});
}

void ShardCore::forget_unsaved() {
  const RankedLock lock(mutex_);
  for (const PageRange& pages : unsaved_) {
    pages_.forget(pages);
  }
  unsaved_.clear();
}

Result<void> ShardCore::free(void* pointer, std::optional<Stream> stream) {
  if (stream && !is_known(*stream)) [[unlikely]] {
    // Any other failure to ask is no reason to keep a block that is not wanted any more.
    if (auto known = get_to_know(*stream, "freeing"); !known && known.error().code == ErrorCode::kInvalidArgument) {
      return known;
    }
  }
  return heap_->free(pointer, stream);
}

bool ShardCore::a_capture_runs() {
  return options_.owner != nullptr && options_.owner->is_capturing(options_.device).value_or(false);
}

Result<PageRange> ShardCore::back(PageRange hole, Pages at_least, BlockKind kind) {
  note_use();
  return extents_.grow(hole, at_least, kind);
}

ShardState ShardCore::state() {
  if (auto waking = this->waking()) {
    waking->poll();
  }
  return state_;
}

ShardStats ShardCore::stats() const {
  const HeapStats heap = heap_->stats();
  ShardStats stats;
  stats.blocks = heap.live_blocks;
  stats.allocated = heap.live;
  stats.mapped = extents_.mapped();
  stats.reserved_addresses = reservation_.size();
  stats.host_pinned = mirror_->pinned();
  stats.handles = extents_.handles();
  stats.queued_frees = heap.queued_frees;
  stats.sleeps = sleeps_;
  stats.wakes = wakes_;
  return stats;
}

Result<bool> ShardCore::may_be_used_on(Stream stream, const char* asking) const {
  for (Device* device : devices_) {
    auto owns = device->owns(stream, asking);
    if (!owns || *owns) {
      return owns;
    }
  }
  return false;
}

Result<void> ShardCore::check_kept() const {
  if (const Pages kept = pages_.kept(kept_end_); kept != kept_) {
    return failure(ErrorCode::kCorrupted, "waking: the sleep of shard '" + name() + "' has kept " +
                                              std::to_string(kept_.count()) + " pages, and " +
                                              std::to_string(kept.count()) + " are there; it stays asleep");
  }
  return {};
}

void ShardCore::ask_whether_lost() {
  for (Device* device : devices_) {
    if (const auto memory = device->memory_info(); !memory && memory.error().code == ErrorCode::kLost) {
      state_ = ShardState::kLost;
    }
  }
}

std::shared_ptr<Waking> ShardCore::waking() const {
  RankedLock lock(mutex_);
  return waking_;
}

void ShardCore::set_waking(std::shared_ptr<Waking> waking) {
  RankedLock lock(mutex_);
  waking_.swap(waking); // the old one is dropped outside of the lock
  lock.unlock();
}

void ShardCore::forget_waking(const Waking& over) {
  std::shared_ptr<Waking> dropped; // outside of the lock
  RankedLock lock(mutex_);
  if (waking_.get() == &over) {
    dropped.swap(waking_);
  }
  lock.unlock();
}

Result<LivePages> ShardCore::live_pages(const std::vector<BlockLiveRanges>& told) const {
  auto ranges = sort_owner_ranges(reservation_.base(), reservation_.size(), told);
  STILLWAKE_TRY(ranges);
  auto live = find_live_pages(heap_->live_blocks(), *ranges);
  if (!live) {
    Error error = std::move(live).error();
    error.message = "shard '" + options_.name + "': " + error.message;
    return failure(std::move(error));
  }
  return live;
}

Result<std::unique_ptr<PinningJob>> ShardCore::arrange_mirror(const std::vector<PageRange>& wanted) {
  auto job = mirror_->arrange(wanted, kMirrorSlack);
  if (!job) {
    forget_unpinned(); // it may hold less than before: what is gone must not be taken for a backing
    return job;
  }
  // A raw backing that is not wanted any more may go at any moment from here on.
  Pages page;
  for (const PageRange& range : wanted) {
    for (; page < range.first; ++page) {
      if (pages_[page].encoding == PageEncoding::kRaw) {
        pages_[page] = PageEntry();
      }
    }
    page = range.end();
  }
  for (; page < pages_.size(); ++page) {
    if (pages_[page].encoding == PageEncoding::kRaw) {
      pages_[page] = PageEntry();
    }
  }
  return job;
}

void ShardCore::check_invariants() const {
  heap_->check_invariants();
  mirror_->check_invariants();
  const ShardState state = state_;
  for (Pages page; page < pages_.size(); ++page) {
    if (pages_[page].encoding == PageEncoding::kRaw) {
      STILLWAKE_CHECK(mirror_->is_pinned({page, Pages(1)}));
    }
  }
  if (state == ShardState::kAwake) {
    Pages mapped;
    for (const Extent& extent : extents_.extents()) {
      STILLWAKE_CHECK_LE(mapped, extent.pages.first);
      mapped = extent.pages.end();
    }
  }
}

} // namespace stillwake
