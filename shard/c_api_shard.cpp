// SPDX-License-Identifier: Apache-2.0
// The C calls for one shard.
#include "shard/c_api_handles.h"

#include <fmt/format.h>

using namespace stillwake;
using namespace stillwake::c_api;

namespace {

static_assert(STILLWAKE_POLICY_PRESERVE == static_cast<int>(Policy::kPreserve));
static_assert(STILLWAKE_POLICY_DISCARD == static_cast<int>(Policy::kDiscard));
static_assert(STILLWAKE_POLICY_FROZEN == static_cast<int>(Policy::kFrozen));
static_assert(STILLWAKE_HOST_COPY_PACKED == static_cast<int>(HostCopy::kPacked));
static_assert(STILLWAKE_HOST_COPY_READABLE == static_cast<int>(HostCopy::kReadable));
static_assert(STILLWAKE_BACKING_RETAIN == static_cast<int>(Backing::kRetain));
static_assert(STILLWAKE_BACKING_RELEASE == static_cast<int>(Backing::kRelease));
static_assert(STILLWAKE_BLOCK_SHARED == static_cast<int>(BlockKind::kShared));
static_assert(STILLWAKE_BLOCK_ONE_HANDLE == static_cast<int>(BlockKind::kOneHandle));
static_assert(STILLWAKE_PREPARE_FOREGROUND == static_cast<int>(Shard::Prepare::kForeground));
static_assert(STILLWAKE_PREPARE_BACKGROUND == static_cast<int>(Shard::Prepare::kBackground));
static_assert(STILLWAKE_STATE_AWAKE == static_cast<int>(ShardState::kAwake));
static_assert(STILLWAKE_STATE_SEALED == static_cast<int>(ShardState::kSealed));
static_assert(STILLWAKE_STATE_STAGED_SLEEP == static_cast<int>(ShardState::kStagedSleep));
static_assert(STILLWAKE_STATE_ASLEEP == static_cast<int>(ShardState::kAsleep));
static_assert(STILLWAKE_STATE_STAGED_WAKE == static_cast<int>(ShardState::kStagedWake));
static_assert(STILLWAKE_STATE_WAKING == static_cast<int>(ShardState::kWaking));
static_assert(STILLWAKE_STATE_CORRUPTED == static_cast<int>(ShardState::kCorrupted));
static_assert(STILLWAKE_STATE_LOST == static_cast<int>(ShardState::kLost));

Result<ShardOptions> read_shard_options(const stillwake_shard_options& given) {
  ShardOptions options;
  options.name = given.name == nullptr ? "" : given.name;
  options.device = DeviceIndex(given.device);
  auto policy = read(given.policy, Policy::kFrozen, "policy", "0 preserve, 1 discard, 2 frozen");
  STILLWAKE_TRY(policy);
  auto host_copy = read(given.host_copy, HostCopy::kReadable, "host_copy", "0 packed, 1 readable");
  STILLWAKE_TRY(host_copy);
  auto backing = read(given.backing, Backing::kRelease, "backing", "0 retain, 1 release");
  STILLWAKE_TRY(backing);
  options.policy = *policy;
  options.host_copy = *host_copy;
  options.backing = *backing;
  options.trust = given.trust != 0;
  if (given.addresses != 0) {
    options.addresses = Bytes(given.addresses);
  }
  if (given.peer_count != 0) {
    STILLWAKE_TRY(check_given(given.peers, "peers"));
  }
  for (std::uint32_t i = 0; i < given.peer_count; ++i) {
    options.peers.emplace_back(given.peers[i]);
  }
  return options;
}

/// The body of a call that asks a shard for one value and writes it where `to` points.
template <class Value, class Ask>
stillwake_status answer(stillwake_shard* shard, Value* to, const char* what, Ask&& ask) noexcept {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    STILLWAKE_TRY(check_given(to, what));
    *to = std::forward<Ask>(ask)(shard->shard);
    return {};
  });
}

} // namespace

extern "C" {

stillwake_status stillwake_shard_create(stillwake_driver* driver, const stillwake_shard_options* options,
                                        stillwake_shard** shard) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(driver, "driver"));
    STILLWAKE_TRY(check_given(shard, "shard"));
    const auto given = read(options, "stillwake_shard_options");
    STILLWAKE_TRY(given);
    auto asked = read_shard_options(*given);
    STILLWAKE_TRY(asked);
    std::unique_ptr<CallbackOwner> owner;
    if (given->owner != nullptr) {
      const auto callbacks = read(given->owner, "stillwake_owner");
      STILLWAKE_TRY(callbacks);
      owner = std::make_unique<CallbackOwner>(*callbacks);
      asked->owner = owner.get();
    }
    auto created = Shard::create(*driver->driver, *std::move(asked));
    STILLWAKE_TRY(created);
    *shard = std::make_unique<stillwake_shard>(*driver, std::move(owner), *std::move(created)).release();
    return {};
  });
}

stillwake_status stillwake_shard_destroy(stillwake_shard* shard) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    if (shard->staged != 0) {
      return failure(ErrorCode::kBusy, fmt::format("shard '{}' is held by a staged half; commit, abandon or release it "
                                                   "first",
                                                   shard->shard.name()));
    }
    delete shard;
    return {};
  });
}

stillwake_status stillwake_shard_allocate(stillwake_shard* shard, uint64_t size, void* stream, int32_t block_kind,
                                          void** pointer) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    STILLWAKE_TRY(check_given(pointer, "pointer"));
    const auto kind = read(block_kind, BlockKind::kOneHandle, "block_kind", "0 shared, 1 one handle");
    STILLWAKE_TRY(kind);
    const auto block = shard->shard.allocate(Bytes(size), static_cast<Stream>(stream), *kind);
    STILLWAKE_TRY(block);
    *pointer = *block;
    return {};
  });
}

stillwake_status stillwake_shard_free(stillwake_shard* shard, void* pointer) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    return shard->shard.free(pointer);
  });
}

stillwake_status stillwake_shard_free_on_stream(stillwake_shard* shard, void* pointer, void* stream) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    return shard->shard.free(pointer, static_cast<Stream>(stream));
  });
}

stillwake_status stillwake_shard_name(stillwake_shard* shard, const char** name) {
  return answer(shard, name, "name", [](const Shard& asked) { return asked.name().c_str(); });
}

stillwake_status stillwake_shard_device(stillwake_shard* shard, int32_t* device) {
  return answer(shard, device, "device", [](const Shard& asked) { return asked.device().value(); });
}

stillwake_status stillwake_shard_policy(stillwake_shard* shard, int32_t* policy) {
  return answer(shard, policy, "policy", [](const Shard& asked) { return static_cast<int32_t>(asked.policy()); });
}

stillwake_status stillwake_shard_state(stillwake_shard* shard, int32_t* state) {
  return answer(shard, state, "state", [](const Shard& asked) { return static_cast<int32_t>(asked.state()); });
}

const char* stillwake_state_name(int32_t state) {
  const bool is_known = state >= STILLWAKE_STATE_AWAKE && state <= STILLWAKE_STATE_LOST;
  return is_known ? to_string(static_cast<ShardState>(state)) : "unknown state";
}

stillwake_status stillwake_shard_first_address(stillwake_shard* shard, const void** address) {
  return answer(shard, address, "address", [](const Shard& asked) { return asked.first_address(); });
}

stillwake_status stillwake_shard_contains(stillwake_shard* shard, const void* pointer, bool* contains) {
  return answer(shard, contains, "contains", [pointer](const Shard& asked) { return asked.contains(pointer); });
}

stillwake_status stillwake_shard_stats_get(stillwake_shard* shard, stillwake_shard_stats* stats) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    STILLWAKE_TRY(in_reach());
    const ShardStats now = shard->shard.stats();
    stillwake_shard_stats own{};
    own.blocks = now.blocks;
    own.allocated = now.allocated.count();
    own.mapped = now.mapped.count();
    own.reserved_addresses = now.reserved_addresses.count();
    own.host_pinned = now.host_pinned.count();
    own.handles = now.handles;
    own.queued_frees = now.queued_frees;
    own.sleeps = now.sleeps;
    own.wakes = now.wakes;
    return write(stats, own, "stillwake_shard_stats");
  });
}

stillwake_status stillwake_shard_prepare(stillwake_shard* shard, int32_t how) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    const auto asked = read(how, Shard::Prepare::kBackground, "how", "0 foreground, 1 background");
    STILLWAKE_TRY(asked);
    return shard->shard.prepare(*asked);
  });
}

stillwake_status stillwake_shard_trim(stillwake_shard* shard, uint64_t* bytes) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    const auto trimmed = shard->shard.trim();
    STILLWAKE_TRY(trimmed);
    if (bytes != nullptr) {
      *bytes = trimmed->count();
    }
    return {};
  });
}

stillwake_status stillwake_shard_host_address(stillwake_shard* shard, const void* pointer, void** host_address) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    STILLWAKE_TRY(check_given(host_address, "host_address"));
    const auto address = shard->shard.host_address(pointer);
    STILLWAKE_TRY(address);
    *host_address = *address;
    return {};
  });
}

stillwake_status stillwake_shard_mark_host_dirty(stillwake_shard* shard, const void* pointer, uint64_t size) {
  return guarded([&]() -> Result<void> {
    STILLWAKE_TRY(check_given(shard, "shard"));
    return shard->shard.mark_host_dirty(pointer, Bytes(size));
  });
}

} // extern "C"
