// SPDX-License-Identifier: Apache-2.0
// Random programs on two mirrors of one arena, each step compared with the plain model.
#include "allocator/driver/emulation/emulation.h"
#include "tests/model/mirror_model.h"
#include "tests/model/model_program.h"

#include <memory>

namespace stillwake {
namespace {

/// Two mirrors and what they should be.
class MirrorMachine {
public:
  explicit MirrorMachine(Driver& driver) : driver_(driver), device_(**driver.device(DeviceIndex(0))) {
    for (auto& mirror : mirrors_) {
      mirror = std::move(*Mirror::create(arena_, device_, Bytes(Pages(kMirrorPages))));
    }
  }
  ~MirrorMachine() { driver_.gate().arm({}); }

  /// Empty, or what is wrong after the step.
  std::string apply(const MirrorOperation& operation) {
    std::string wrong;
    switch (operation.action) {
    case MirrorAction::kArrange: wrong = arrange(operation, wanted_ranges(operation.a), Pages(operation.b)); break;
    case MirrorAction::kClear: wrong = arrange(operation, {}, Pages(0)); break;
    case MirrorAction::kWrite: write(operation); break;
    case MirrorAction::kFail:
      driver_.gate().arm({Fault{operation.a % 2 == 0 ? CallId::cuMemHostRegister : CallId::cuMemHostUnregister,
                                operation.b, CUDA_ERROR_OUT_OF_MEMORY, false}});
      break;
    case MirrorAction::kBudget:
      limit_ = Pages(operation.a);
      arena_.budget().set_limit(operation.a == 0 ? std::nullopt : std::optional(Bytes(limit_)));
      break;
    case MirrorAction::kThreads: arena_.set_pinning_threads(static_cast<int>(operation.a)); break;
    }
    return wrong.empty() ? compare() : wrong;
  }

private:
  std::string arrange(const MirrorOperation& operation, const std::vector<PageRange>& wanted, Pages slack) {
    Mirror& mirror = *mirrors_[operation.mirror];
    MirrorModel& model = models_[operation.mirror];
    const std::vector<PageRange> before = mirror.pieces();
    const std::uint64_t injected = driver_.gate().injected();
    Result<void> result;
    if (auto job = mirror.arrange(wanted, slack)) {
      if (operation.a % 3 == 0 && !wanted.empty()) {
        (void)(*job)->wait_for(wanted.back().first);
      }
      result = (*job)->finish();
    } else {
      result = failure(job.error());
    }
    if (!result && result.error().code == ErrorCode::kOverBudget) {
      return mirror.pieces() != before ? "over budget changed something" : may_be_over_budget(wanted, slack);
    }
    if (!result && driver_.gate().injected() == injected) {
      return "failed by itself: " + result.error().describe();
    }
    return model.follow(mirror.pieces(), wanted, slack, result.has_value());
  }

  /// Only when what is wanted, with all slack, and what the other mirror holds exceed the limit.
  std::string may_be_over_budget(const std::vector<PageRange>& wanted, Pages slack) const {
    Pages most = slack + Pages(models_[0].pages()) + Pages(models_[1].pages());
    for (PageRange range : wanted) {
      most += range.count;
    }
    return limit_ != Pages(0) && limit_ < most ? "" : "over a budget that has room";
  }

  void write(const MirrorOperation& operation) {
    for (std::uint64_t page = 0; page < kMirrorPages; ++page) {
      if (models_[operation.mirror].word(Pages(page))) {
        const std::uint64_t word = operation.a * 1000 + page;
        for (std::uint64_t* place : places(*mirrors_[operation.mirror], Pages(page))) {
          *place = word;
        }
        models_[operation.mirror].write(Pages(page), word);
      }
    }
  }

  std::string compare() {
    std::uint64_t registrations = 0;
    Pages pinned;
    if (const Bytes left = arena_.budget().without_memory(); left != Bytes(0)) {
      return exact(left) + " are counted as taken and without memory, though no job is running";
    }
    for (std::size_t m = 0; m < 2; ++m) {
      mirrors_[m]->check_invariants();
      registrations += mirrors_[m]->pieces().size();
      pinned += Pages(models_[m].pages());
      for (std::uint64_t page = 0; page < kMirrorPages; ++page) {
        const std::optional<std::uint64_t> word = models_[m].word(Pages(page));
        if (mirrors_[m]->is_pinned({Pages(page), Pages(1)}) != word.has_value()) {
          return "mirror " + std::to_string(m) + ", page " + std::to_string(page) +
                 ": pinned or not, the model differs";
        }
        for (std::uint64_t* place : word ? places(*mirrors_[m], Pages(page)) : std::vector<std::uint64_t*>()) {
          if (*place != *word) {
            return "mirror " + std::to_string(m) + ", page " + std::to_string(page) + " holds " +
                   std::to_string(*place) + " instead of " + std::to_string(*word);
          }
        }
      }
    }
    if (arena_.pinned() != Bytes(pinned)) {
      return "the budget counts " + readable(arena_.pinned()) + ", pinned are " + readable(Bytes(pinned));
    }
    if (driver_.emulation()->live_registrations() != registrations) {
      return std::to_string(driver_.emulation()->live_registrations()) + " registrations for " +
             std::to_string(registrations) + " pieces";
    }
    return {};
  }

  static std::vector<std::uint64_t*> places(Mirror& mirror, Pages page) {
    auto* words = reinterpret_cast<std::uint64_t*>(mirror.at(page));
    const std::uint64_t count = kPageBytes.count() / 8;
    return {words, words + count / 2 + 1, words + count - 1};
  }

  Driver& driver_;
  Device& device_;
  HostArena arena_{{.budget = std::nullopt, .pinning_threads = 1}};
  std::unique_ptr<Mirror> mirrors_[2];
  MirrorModel models_[2];
  Pages limit_;
};

MirrorOperation random_operation(ModelRandom& random) {
  const int mirror = static_cast<int>(random.below(2));
  switch (random.below(16)) {
  case 0: return {MirrorAction::kClear, mirror, 0, 0};
  case 1:
  case 2:
  case 3: return {MirrorAction::kWrite, mirror, 1 + random.below(100000), 0};
  case 4:
  case 5: return {MirrorAction::kFail, mirror, random.below(2), 1 + random.below(4)};
  case 6: return {MirrorAction::kBudget, mirror, random.percent(30) ? 0 : 4 + random.below(60), 0};
  case 7: return {MirrorAction::kThreads, mirror, 1 + random.below(4), 0};
  default: return {MirrorAction::kArrange, mirror, random.below(100000), random.percent(30) ? random.below(20) : 0};
  }
}

std::vector<MirrorOperation> make(ModelRandom& random, std::size_t count) {
  std::vector<MirrorOperation> program;
  while (program.size() < count) {
    program.push_back(random_operation(random));
  }
  return program;
}

std::optional<std::string> run(const std::vector<MirrorOperation>& program) {
  DriverOptions options;
  options.kind = DriverKind::kEmulated;
  options.faults = "";
  auto driver = Driver::open(options);
  if (!driver) {
    return driver.error().describe();
  }
  {
    MirrorMachine machine(*driver);
    for (std::size_t at = 0; at < program.size(); ++at) {
      if (const std::string wrong = machine.apply(program[at]); !wrong.empty()) {
        return "operation " + std::to_string(at) + ", " + program[at].describe() + ": " + wrong;
      }
    }
  }
  const std::uint64_t left = driver->emulation()->live_registrations();
  return left == 0 ? std::nullopt : std::optional(std::to_string(left) + " registrations are left at the end");
}

} // namespace
} // namespace stillwake

int main(int argc, char** argv) {
  stillwake::Model<stillwake::MirrorOperation> model;
  model.name = "mirror_model";
  model.make = stillwake::make;
  model.run = stillwake::run;
  model.operations = 4'000;
  return stillwake::run_model(model, argc, argv);
}
