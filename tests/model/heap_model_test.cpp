// SPDX-License-Identifier: Apache-2.0
// Random programs on a heap, each operation checked against a plain model.
#include "tests/model/heap_model.h"
#include "tests/model/model_program.h"

namespace stillwake {
namespace {

using Kind = HeapOperation::Kind;

std::uint64_t a_size(ModelRandom& random) {
  switch (random.below(20)) {
  case 0: return random.below(3) == 0 ? 0 : (std::uint64_t{64} << 20) + 1 + random.below(1000);
  case 1: return 1 + random.below(24 << 20);
  case 2:
  case 3:
  case 4: return 1 + random.below(3 << 20);
  case 5: return 512 << random.below(12);
  case 6:
  case 7:
  case 8: return 4096; // often again: what caches are for
  default: return 1 + random.below(40'000);
  }
}

/// Phases, so that a program both fills up and runs empty.
std::vector<HeapOperation> make(ModelRandom& random, std::size_t count) {
  std::vector<HeapOperation> program;
  unsigned allocating = 50;
  while (program.size() < count) {
    if (random.below(100) == 0) {
      allocating = 20 + static_cast<unsigned>(random.below(60));
    }
    const std::uint64_t stream = random.below(4);
    const std::uint64_t which = random.below(1 << 20);
    const unsigned dice = static_cast<unsigned>(random.below(100));
    if (dice < 80) {
      if (random.percent(allocating)) {
        const bool one = random.percent(4);
        program.push_back(
            {one ? Kind::kAllocateOne : Kind::kAllocate, one ? 1 + random.below(5 << 20) : a_size(random), stream});
      } else {
        const Kind kinds[] = {Kind::kFreeOwn, Kind::kFreeOwn, Kind::kFree, Kind::kFreeUnknown};
        program.push_back({kinds[random.below(4)], which, stream});
      }
    } else if (dice < 83) {
      program.push_back({Kind::kFreeWrong, which, random.below(3)});
    } else if (dice < 86) {
      program.push_back({Kind::kHold, 0, stream});
    } else if (dice < 92) {
      program.push_back({Kind::kFinish, 0, stream});
    } else if (dice < 93) {
      program.push_back({Kind::kFail, random.below(3), 0}); // works twice as often as not
    } else if (dice < 95) {
      program.push_back({Kind::kSeal, 0, 0});
    } else {
      const Kind kinds[] = {Kind::kUnseal, Kind::kUnseal, Kind::kDrain, Kind::kConsolidate, Kind::kUnback};
      program.push_back({kinds[random.below(5)], which, 0});
    }
  }
  return program;
}

std::optional<std::string> run(const std::vector<HeapOperation>& program) {
  HeapModel model;
  for (std::size_t index = 0; index < program.size(); ++index) {
    if (auto wrong = model.apply(program[index])) {
      return "operation " + std::to_string(index) + ", " + program[index].describe() + ": " + *wrong;
    }
  }
  return model.finish();
}

} // namespace
} // namespace stillwake

int main(int argc, char** argv) {
  stillwake::Model<stillwake::HeapOperation> model;
  model.name = "heap_model";
  model.make = stillwake::make;
  model.run = stillwake::run;
  return stillwake::run_model(model, argc, argv);
}
