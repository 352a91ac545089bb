// SPDX-License-Identifier: Apache-2.0
// Random programs of allocations, writes, sleeps, wakes, swaps and failing driver calls on four shards beside a model.
#include "tests/model/model_program.h"
#include "tests/model/shard_model_run.h"

namespace stillwake {
namespace {

ShardOperation random_operation(ModelRandom& random) {
  ShardOperation operation;
  operation.shard = static_cast<int>(random.below(kModelShards));
  operation.a = 1 + random.below((1u << kModelShards) - 1);
  operation.b = random.below(4) == 0 ? 1 : 0;
  const std::uint64_t kind = random.below(100);
  if (kind < 26) {
    operation.action = ShardAction::kAllocate;
    const std::uint64_t magnitude = 9 + random.below(14); // 512 B to 4 MiB
    operation.a = (1ull << magnitude) + random.below(1ull << magnitude);
    operation.b = random.percent(5) ? 1 : 0;
  } else if (kind < 44) {
    operation.action = ShardAction::kFree;
    operation.a = random.below(1000);
  } else if (kind < 56) {
    operation.action = ShardAction::kWrite;
    operation.a = random.below(1000);
    operation.b = random.below(1000); // 0: zeros
  } else if (kind < 68) {
    operation.action = ShardAction::kSleep;
  } else if (kind < 80) {
    operation.action = ShardAction::kWake;
  } else if (kind < 86) {
    operation.action = ShardAction::kSwap;
    operation.b = 1 + random.below((1u << kModelShards) - 1);
  } else if (kind < 88) {
    operation.action = ShardAction::kStage;
  } else if (kind < 90) {
    operation.action = ShardAction::kPrepare;
  } else if (kind < 92) {
    operation.action = ShardAction::kTrim;
  } else if (kind < 95) {
    operation.action = ShardAction::kHostWrite;
    operation.a = random.below(1000);
    operation.b = random.below(1000);
  } else if (kind < 98) {
    operation.action = ShardAction::kFail;
    operation.a = 1 + random.below(random.percent(50) ? 8 : 60);
  } else if (kind < 99) {
    operation.action = ShardAction::kCapacity;
    operation.a = 32 + random.below(96);
  } else {
    operation.action = ShardAction::kBudget;
    operation.a = random.percent(50) ? 0 : 8 + random.below(64);
  }
  return operation;
}

int run(int argc, char** argv) {
  Model<ShardOperation> model;
  model.name = "shard_model";
  model.operations = 6000;
  model.program_length = 300;
  model.make = [](ModelRandom& random, std::size_t count) {
    std::vector<ShardOperation> program(count);
    for (ShardOperation& operation : program) {
      operation = random_operation(random);
    }
    return program;
  };
  model.run = [](const std::vector<ShardOperation>& program) -> std::optional<std::string> {
    ShardModelRun run;
    for (std::size_t i = 0; i < program.size(); ++i) {
      if (auto wrong = run.step(program[i])) {
        return "operation " + std::to_string(i) + ", " + program[i].describe() + ": " + *wrong;
      }
    }
    return run.finish();
  };
  return run_model(model, argc, argv);
}

} // namespace
} // namespace stillwake

int main(int argc, char** argv) { return stillwake::run(argc, argv); }
