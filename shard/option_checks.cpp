// SPDX-License-Identifier: Apache-2.0
#include "shard/option_checks.h"

#include <algorithm>

namespace stillwake {
namespace {

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
