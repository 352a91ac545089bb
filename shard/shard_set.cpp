// SPDX-License-Identifier: Apache-2.0
#include "shard/shard_set.h"

#include <algorithm>

namespace stillwake {

Result<std::vector<ShardCore*>> cores_of(const std::vector<Shard*>& set) {
  std::vector<ShardCore*> cores;
  for (Shard* shard : set) {
    if (shard == nullptr) {
      return failure(ErrorCode::kInvalidArgument, "a set holds a null shard; give shards that exist");
    }
    if (!shard->is_open()) {
      return failure(moved_from("Shard"));
    }
    ShardCore& core = shard->core();
    if (std::find(cores.begin(), cores.end(), &core) != cores.end()) {
      return failure(ErrorCode::kInvalidArgument, "shard '" + core.name() + "' is twice in the set; name it once");
    }
    if (!cores.empty() && &cores.front()->registry() != &core.registry()) {
      return failure(ErrorCode::kInvalidArgument, "shards '" + cores.front()->name() + "' and '" + core.name() +
                                                      "' belong to different drivers; a set is of one");
    }
    cores.push_back(&core);
  }
  return cores;
}

} // namespace stillwake
