// SPDX-License-Identifier: Apache-2.0
// A CallbackOwner is a shard's owner who answers through C functions.
#pragma once

#include "shard/options.h"
#include "shard/stillwake_c.h"

namespace stillwake::c_api {

class CallbackOwner : public ShardOwner {
public:
  explicit CallbackOwner(const stillwake_owner& callbacks) : callbacks_(callbacks) {}

  std::vector<BlockLiveRanges> live_ranges() override;
  std::optional<bool> is_capturing(DeviceIndex device) override;
  bool memory_is_short(DeviceIndex device, Bytes needed) override;

private:
  stillwake_owner callbacks_;
};

} // namespace stillwake::c_api
