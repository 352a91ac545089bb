// SPDX-License-Identifier: Apache-2.0
// The plain model of a few shards: which blocks there are, what each must hold, and which shards sleep. It knows
// nothing of pages, mirrors or handles.
#pragma once

#include "shard/stillwake.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stillwake {

enum class ShardAction {
  kAllocate,  ///< a: size, b: kind
  kFree,      ///< a: which block, b: 0 its stream, 1 unknown
  kWrite,     ///< a: which block, b: seed of the content
  kSleep,     ///< a: mask of shards, b: 1 checked
  kWake,      ///< a: mask of shards, b: 1 through a ticket
  kSwap,      ///< a: mask of shards going out, b: mask of shards coming in
  kStage,     ///< a: mask, b: 0 sleep, 1 wake; staged and abandoned
  kPrepare,   ///< of the shard
  kTrim,      ///< of the shard
  kHostWrite, ///< a: which block, b: seed; where the host copy is readable
  kFail,      ///< a: the nth driver call of the next action fails
  kCapacity,  ///< a: the device has so many MiB
  kBudget,    ///< a: pinned MiB at most, 0 no limit
};

struct ShardOperation {
  ShardAction action = ShardAction::kTrim;
  int shard = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;

  /// An initialiser of itself, to be pasted into a program.
  std::string describe() const;
};

constexpr int kModelShards = 4;
/// Preserved, preserved with a readable host copy that is released, discarded, frozen.
ShardOptions model_shard(int index);

struct ModelBlock {
  int shard = 0;
  void* pointer = nullptr;
  Bytes size;
  std::optional<std::uint64_t> seed; ///< unset: undefined; kZeros: zeros
};
constexpr std::uint64_t kZeros = 0;

/// Word `index` of a block that was filled with `seed`.
std::uint64_t model_word(std::uint64_t seed, std::uint64_t index);

class ShardModel {
public:
  std::vector<ModelBlock> blocks;
  bool asleep[kModelShards] = {};

  /// The blocks of a shard that slept and woke: what was discarded is zeros now, where the policy says so.
  void woke(int shard);
  ModelBlock* nth(int shard, std::uint64_t n);
};

} // namespace stillwake
