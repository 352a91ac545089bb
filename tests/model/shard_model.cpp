// SPDX-License-Identifier: Apache-2.0
#include "tests/model/shard_model.h"

namespace stillwake {

std::string ShardOperation::describe() const {
  static const char* const kNames[] = {"kAllocate", "kFree", "kWrite",     "kSleep", "kWake",     "kSwap",  "kStage",
                                       "kPrepare",  "kTrim", "kHostWrite", "kFail",  "kCapacity", "kBudget"};
  return std::string("{ShardAction::") + kNames[static_cast<int>(action)] + ", " + std::to_string(shard) + ", " +
         std::to_string(a) + ", " + std::to_string(b) + "}";
}

ShardOptions model_shard(int index) {
  ShardOptions options;
  options.name = "shard " + std::to_string(index);
  options.addresses = kMiB * 64;
  if (index == 1) {
    options.host_copy = HostCopy::kReadable;
    options.backing = Backing::kRelease;
  } else if (index == 2) {
    options.policy = Policy::kDiscard;
  } else if (index == 3) {
    options.policy = Policy::kFrozen;
  }
  return options;
}

std::uint64_t model_word(std::uint64_t seed, std::uint64_t index) {
  return seed == kZeros ? 0 : (seed * 0x9e3779b97f4a7c15ull + index) * 0xbf58476d1ce4e5b9ull | 1;
}

void ShardModel::woke(int shard) {
  asleep[shard] = false;
  if (model_shard(shard).policy != Policy::kDiscard) {
    return;
  }
  for (ModelBlock& block : blocks) {
    if (block.shard == shard) {
      block.seed = kZeros;
    }
  }
}

ModelBlock* ShardModel::nth(int shard, std::uint64_t n) {
  std::vector<ModelBlock*> own;
  for (ModelBlock& block : blocks) {
    if (block.shard == shard) {
      own.push_back(&block);
    }
  }
  return own.empty() ? nullptr : own[n % own.size()];
}

} // namespace stillwake
