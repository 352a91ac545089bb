// SPDX-License-Identifier: Apache-2.0
// A ShardModelRun carries one program out on real shards of the emulated driver, beside the model, and says what
// differs.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/driver/emulation/emulation.h"
#include "shard/shard_core.h"
#include "tests/model/shard_model.h"

namespace stillwake {

class ShardModelRun {
public:
  ShardModelRun();
  ~ShardModelRun();

  /// What was wrong after the operation, or nothing.
  std::optional<std::string> step(const ShardOperation& operation);
  /// Wakes everything and compares every byte.
  std::optional<std::string> finish();

private:
  ShardSet set(std::uint64_t mask);
  std::optional<std::string> allocate(const ShardOperation& operation);
  std::optional<std::string> free(const ShardOperation& operation);
  std::optional<std::string> transition(const ShardOperation& operation);
  Result<void> carry_out(const ShardOperation& operation, const ShardSet& in, const ShardSet& out);
  std::optional<std::string> follow(const ShardOperation& operation, const Result<void>& outcome);
  std::optional<std::string> compare(const ModelBlock& block);
  std::optional<std::string> check();
  void write(ModelBlock& block, void* to, std::uint64_t seed);

  std::optional<Driver> driver_;
  std::vector<std::unique_ptr<Shard>> shards_;
  ShardModel model_;
  std::optional<std::uint64_t> fail_;
  std::uint64_t checked_ = 0;
};

} // namespace stillwake
