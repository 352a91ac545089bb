// SPDX-License-Identifier: Apache-2.0
#include "shard/shard.h"

#include "allocator/base/base.h"
#include "shard/shard_core.h"

namespace stillwake {

const char* to_string(ShardState state) {
  switch (state) {
  case ShardState::kAwake: return "awake";
  case ShardState::kSealed: return "sealed";
  case ShardState::kStagedSleep: return "staged to sleep";
  case ShardState::kAsleep: return "asleep";
  case ShardState::kStagedWake: return "staged to wake";
  case ShardState::kWaking: return "waking";
  case ShardState::kCorrupted: return "corrupted";
  case ShardState::kLost: return "lost";
  }
  return "unknown";
}

Result<Shard> Shard::create(Driver& driver, ShardOptions options) {
  STILLWAKE_TRY(in_reach());
  auto core = ShardCore::create(driver, std::move(options));
  STILLWAKE_TRY(core);
  return Shard(std::move(*core));
}

Shard::Shard(std::unique_ptr<ShardCore> core) : core_(std::move(core)) {}
Shard::Shard(Shard&&) noexcept = default;
Shard& Shard::operator=(Shard&&) noexcept = default;
Shard::~Shard() = default;

ShardCore& Shard::core() const { return not_moved_from(core_, "Shard"); }

Result<void> Shard::check_usable() const {
  STILLWAKE_TRY(in_reach());
  if (core_ == nullptr) [[unlikely]] {
    return failure(moved_from("Shard"));
  }
  return {};
}

Result<void*> Shard::allocate(Bytes size, Stream stream, BlockKind kind) {
  STILLWAKE_TRY(check_usable());
  return in_one_piece("allocating", [&] { return core_->allocate(size, stream, kind); });
}
Result<void> Shard::free(void* pointer) {
  STILLWAKE_TRY(check_usable());
  return in_one_piece("freeing", [&] { return core_->free(pointer, std::nullopt); });
}
Result<void> Shard::free(void* pointer, Stream stream) {
  STILLWAKE_TRY(check_usable());
  return in_one_piece("freeing", [&] { return core_->free(pointer, stream); });
}

const std::string& Shard::name() const { return core().name(); }
DeviceIndex Shard::device() const { return core().device().index(); }
Policy Shard::policy() const { return core().options().policy; }
ShardState Shard::state() const { return in_reach() ? core().state() : ShardState::kLost; }
ShardStats Shard::stats() const { return in_reach() ? core().stats() : ShardStats(); }
bool Shard::contains(const void* pointer) const { return core().reservation().contains(DeviceAddress(pointer)); }

const void* Shard::first_address() const { return core().reservation().base().pointer(); }

Result<void> Shard::prepare(Prepare how) {
  STILLWAKE_TRY(check_usable());
  return in_one_piece("preparing", [&] { return core_->prepare(how); });
}
Result<Bytes> Shard::trim() {
  STILLWAKE_TRY(check_usable());
  return in_one_piece("trimming", [&] { return core_->trim(); });
}
Result<std::byte*> Shard::host_address(const void* pointer) const {
  STILLWAKE_TRY(check_usable());
  return core_->host_address(pointer);
}
Result<void> Shard::mark_host_dirty(const void* pointer, Bytes size) {
  STILLWAKE_TRY(check_usable());
  return core_->mark_host_dirty(pointer, size);
}

} // namespace stillwake
