// SPDX-License-Identifier: Apache-2.0
#include "shard/option_checks.h"

#include <algorithm>

namespace stillwake {
namespace {

constexpr std::size_t kLongestName = 256;

// What a heap can count: less than 2 TiB.
constexpr Bytes kMostAddresses = kGiB * 2048 - kPageBytes;

Result<void> check_name(const std::string& name) {
  const bool printable = std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (name.empty() || name.size() > kLongestName || !printable) {
    return failure(ErrorCode::kInvalidArgument, "a shard's name has " + std::to_string(name.size()) + " bytes" +
                                                    (printable ? "" : " and control characters among them") +
                                                    "; it stands in messages and " + "reports, so 1 to " +
                                                    std::to_string(kLongestName) + " printable ones are possible");
  }
  return {};
}

Result<void> check_choices(const ShardOptions& options) {
  const std::pair<const char*, bool> choices[] = {
      {"policy", options.policy <= Policy::kFrozen && options.policy >= Policy::kPreserve},
      {"host_copy", options.host_copy == HostCopy::kPacked || options.host_copy == HostCopy::kReadable},
      {"backing", options.backing == Backing::kRetain || options.backing == Backing::kRelease}};
  const auto* wrong = std::find_if(std::begin(choices), std::end(choices), [](const auto& c) { return !c.second; });
  if (wrong == std::end(choices)) {
    return {};
  }
  return failure(ErrorCode::kInvalidArgument, "shard '" + options.name + "': the value of " + wrong->first +
                                                  " is none of the enum's; use a named one");
}

Result<void> check_timeout(const std::optional<Duration>& timeout, const char* of) {
  if (timeout && *timeout < Duration::zero()) {
    return failure(ErrorCode::kInvalidArgument, std::string("the timeout of a ") + of + " is " +
                                                    std::to_string(timeout->count()) +
                                                    " ns; give 0 or more, or leave it unset");
  }
  return {};
}

Result<void> check_first(const WakeFirst& first, const std::vector<ShardCore*>& set) {
  const DeviceAddress address(first.pointer);
  const auto shard = std::find_if(set.begin(), set.end(),
                                  [&](const ShardCore* core) { return core->reservation().contains(address); });
  if (shard != set.end()) {
    const Reservation& reservation = (*shard)->reservation();
    if (first.size > Bytes(0) && first.size <= reservation.size() - (address - reservation.base())) {
      return {};
    }
  }
  return failure(ErrorCode::kInvalidArgument,
                 "the range of " + std::to_string(first.size.count()) + " bytes at " + hexadecimal(address) +
                     " that is wanted first does not lie in one shard of the set; give ranges of 1 byte or more of its "
                     "blocks");
}

} // namespace

Result<void> check_options(const ShardOptions& options) {
  STILLWAKE_TRY(check_name(options.name));
  STILLWAKE_TRY(check_choices(options));
  if (options.trust && options.policy != Policy::kFrozen) {
    return failure(ErrorCode::kInvalidArgument,
                   "shard '" + options.name + "' is to be trusted but is not frozen; trust goes with Policy::kFrozen");
  }
  return {};
}

Result<Bytes> reservation_size(const ShardOptions& options, const Device& device) {
  if (!options.addresses) {
    return std::min(round_up(device.total_memory(), kPageBytes), kMostAddresses);
  }
  if (*options.addresses < kPageBytes || *options.addresses > kMostAddresses) {
    return failure(ErrorCode::kInvalidArgument, "shard '" + options.name + "' asks for " +
                                                    std::to_string(options.addresses->count()) +
                                                    " bytes of addresses; " + std::to_string(kPageBytes.count()) +
                                                    " to " + std::to_string(kMostAddresses.count()) + " are possible");
  }
  return round_up(*options.addresses, kPageBytes);
}

Result<void> check_peer(const std::string& name, Device& own, Device& peer) {
  int can = 0;
  STILLWAKE_TRY(STILLWAKE_CALL(own.table(), "asking whether a device reaches another", cuDeviceCanAccessPeer, &can,
                               peer.handle(), own.handle()));
  if (can == 0) {
    return failure(ErrorCode::kInvalidArgument,
                   "shard '" + name + "' names device " + std::to_string(peer.index().value()) +
                       " as a peer, which cannot access the memory of device " + std::to_string(own.index().value()) +
                       ", where the shard lives; leave it out of `peers`");
  }
  return {};
}

Result<void> check_options(const SleepOptions& options) { return check_timeout(options.timeout, "sleep"); }

Result<void> check_options(const WakeOptions& options, const std::vector<ShardCore*>& set) {
  STILLWAKE_TRY(check_timeout(options.timeout, "wake"));
  if (options.chunk < kMiB * 64 || options.chunk > kMiB * 256) {
    return failure(ErrorCode::kInvalidArgument,
                   "a chunk of " + std::to_string(options.chunk.count()) + " bytes; 64 MiB to 256 MiB are possible");
  }
  for (const WakeFirst& first : options.first) {
    STILLWAKE_TRY(check_first(first, set));
  }
  return {};
}

} // namespace stillwake
