// SPDX-License-Identifier: Apache-2.0
// A model test runs random programs of operations on the real thing beside a plain model of it. This is what such tests
// share: the options, the random source, running each program in a child process (so that an abort or a deadlock is a
// failure with a program, too), shrinking a failing program, and printing it as it can be pasted in as a regression.
//
//   --seed N        the first program's seed; program i has seed N + i. Without it: a random one, printed.
//   --operations N  how many in all.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace stillwake {

class ModelRandom {
public:
  explicit ModelRandom(std::uint64_t seed) : engine_(seed) {}
  /// 0 to `count` - 1.
  std::uint64_t below(std::uint64_t count) { return engine_() % count; }
  bool percent(unsigned chance) { return below(100) < chance; }

private:
  std::mt19937_64 engine_;
};

/// `Operation` has `std::string describe() const`: an initialiser of itself. Each must mean something wherever it
/// stands (the nth block of those there are, for instance): shrinking leaves others out.
template <class Operation> struct Model {
  using Program = std::vector<Operation>;

  const char* name;
  std::function<Program(ModelRandom&, std::size_t count)> make;
  /// In a child process that runs nothing else: what was wrong, or nothing.
  std::function<std::optional<std::string>(const Program&)> run;
  std::uint64_t operations = 20'000; ///< without --operations
  std::size_t program_length = 1000;
  unsigned seconds = 120; ///< a program that takes longer has failed
  std::vector<Program> regressions;
};

namespace model_detail {

struct Options {
  std::uint64_t seed;
  std::uint64_t operations;
};

inline std::optional<Options> parse(int argc, char** argv, std::uint64_t operations) {
  Options options{std::random_device{}(), operations};
  for (int index = 1; index < argc; index += 2) {
    const std::string_view name = argv[index];
    char* end = nullptr;
    const std::uint64_t value = index + 1 < argc ? std::strtoull(argv[index + 1], &end, 10) : 0;
    if (end == nullptr || end == argv[index + 1] || *end != '\0' || (name != "--seed" && name != "--operations")) {
      std::fprintf(stderr, "usage: %s [--seed N] [--operations N]\n", argv[0]);
      return std::nullopt;
    }
    (name == "--seed" ? options.seed : options.operations) = value;
  }
  return options;
}

template <class Operation>
bool passes(const Model<Operation>& model, const std::vector<Operation>& program, bool quiet) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (quiet && std::freopen("/dev/null", "w", stderr) == nullptr) {
      _exit(1);
    }
    alarm(model.seconds);
    const auto wrong = model.run(program);
    if (wrong) {
      std::fprintf(stderr, "%s: %s\n", model.name, wrong->c_str());
    }
    std::fflush(nullptr);
    _exit(wrong ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (!quiet && WIFSIGNALED(status)) {
    std::fprintf(stderr, "%s: ended by signal %d\n", model.name, WTERMSIG(status));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Leaves out ever smaller pieces as long as the program still fails.
template <class Operation>
std::vector<Operation> shrink(const Model<Operation>& model, std::vector<Operation> program) {
  int tries = 400;
  for (std::size_t piece = program.size() / 2; piece > 0 && tries > 0; piece /= 2) {
    for (std::size_t at = 0; at + piece <= program.size() && tries > 0; --tries) {
      std::vector<Operation> less(program.begin(), program.begin() + static_cast<std::ptrdiff_t>(at));
      less.insert(less.end(), program.begin() + static_cast<std::ptrdiff_t>(at + piece), program.end());
      if (passes(model, less, true)) {
        at += piece;
      } else {
        program = std::move(less);
      }
    }
  }
  return program;
}

template <class Operation> int report(const Model<Operation>& model, const std::vector<Operation>& program) {
  const std::vector<Operation> small = shrink(model, program);
  std::fprintf(stderr, "%s: %zu of %zu operations are enough:\n", model.name, small.size(), program.size());
  for (const Operation& operation : small) {
    std::fprintf(stderr, "    %s,\n", operation.describe().c_str());
  }
  passes(model, small, false);
  return 1;
}

} // namespace model_detail

/// The main of a model test: 0 passed, 1 failed, 2 wrong use.
template <class Operation> int run_model(const Model<Operation>& model, int argc, char** argv) {
  const auto options = model_detail::parse(argc, argv, model.operations);
  if (!options) {
    return 2;
  }
  for (const auto& program : model.regressions) {
    if (!model_detail::passes(model, program, false)) {
      return model_detail::report(model, program);
    }
  }
  std::uint64_t seed = options->seed;
  std::printf("%s: --seed %llu --operations %llu\n", model.name, static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(options->operations));
  for (std::uint64_t done = 0; done < options->operations; done += model.program_length, ++seed) {
    ModelRandom random(seed);
    const auto program = model.make(random, model.program_length);
    if (!model_detail::passes(model, program, false)) {
      std::fprintf(stderr, "%s: failed; again with --seed %llu --operations %zu\n", model.name,
                   static_cast<unsigned long long>(seed), model.program_length);
      return model_detail::report(model, program);
    }
  }
  return 0;
}

} // namespace stillwake
