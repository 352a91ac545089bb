// SPDX-License-Identifier: Apache-2.0
// two_tenants: two engines of one process that each need most of the device take turns by swap: one goes out while the
// other comes in. Each checks every byte when its turn begins. The same turns by sleep and then wake stand beside.
#include "examples/two_tenants/tenant.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>

namespace {

using namespace example;
using stillwake::Bytes;
using stillwake::DeviceIndex;
using stillwake::Driver;
using stillwake::Result;

struct TenantOptions {
  int device = 0;
  bool emulated = false;
  int turns = 4;
  double fill = 0.6;
  double gibibytes = 0; // 0: chosen from fill
};

/// Both tenants are backed by host memory, which a big device would need more of than most machines have.
constexpr Bytes kLargestByDefault = stillwake::kGiB * 16;
/// The CPU moves and fills emulated memory: with this much of it all turns are over in seconds on two cores.
constexpr Bytes kLargestEmulated = stillwake::kMiB * 64;
constexpr Bytes kEmulatedMemory = stillwake::kMiB * 112;
constexpr Bytes kLargestBlock = stillwake::kMiB * 64;

std::string gib(Bytes size) { return fmt::format("{:.2f} GiB", static_cast<double>(size.count()) / (1 << 30)); }
// Two amounts that are compared may look the same rounded.
std::string exact(Bytes size) { return fmt::format("{} ({} bytes)", gib(size), size.count()); }

Result<Bytes> tenant_size(Driver& driver, const TenantOptions& options) {
  auto memory = driver.memory(DeviceIndex(options.device));
  STILLWAKE_TRY(memory);
  const auto free = static_cast<double>(memory->free.count());
  const double wanted = options.gibibytes > 0 ? options.gibibytes * (1 << 30) : free * options.fill;
  Bytes size(static_cast<std::uint64_t>(std::clamp(wanted, 1.0, 1e15)));
  if (options.gibibytes == 0) {
    size = std::min(size, driver.kind() == stillwake::DriverKind::kEmulated ? kLargestEmulated : kLargestByDefault);
  }
  size = round_up(size, stillwake::kPageBytes);
  if (size > memory->free) {
    return stillwake::failure(
        stillwake::ErrorCode::kInvalidArgument,
        fmt::format("a tenant of {} is more than the {} that device {} has free; ask for less with "
                    "--fill or --gibibytes",
                    exact(size), exact(memory->free), options.device));
  }
  return size;
}

/// Makes a device small where both tenants would fit on it: a neighbour holds the rest of the memory.
Result<std::optional<NeighbourMemory>> crowd(Driver& driver, DeviceIndex device, Bytes tenant) {
  auto memory = driver.memory(device);
  STILLWAKE_TRY(memory);
  fmt::print("each tenant: {} of the free {}", gib(tenant), gib(memory->free));
  std::optional<NeighbourMemory> neighbour;
  const Bytes room = tenant + tenant / 2; // for one and a half
  if (tenant * 2 <= memory->free) {
    auto taken = NeighbourMemory::take(driver, device, memory->free - room);
    STILLWAKE_TRY(taken);
    neighbour.emplace(*std::move(taken));
    fmt::print("; a neighbour holds {}", gib(memory->free - room));
  }
  fmt::print(": the two never fit at once\n");
  return neighbour;
}

/// One turn: `out` leaves and `in` comes. Answers the seconds.
Result<double> turn_by_swap(Tenant& out, Tenant& in) {
  auto swapped = stillwake::swap({&out.shard()}, {&in.shard()});
  STILLWAKE_TRY(swapped);
  return stillwake::seconds(swapped->took);
}
Result<double> turn_in_order(Tenant& out, Tenant& in) {
  auto slept = stillwake::sleep({&out.shard()});
  STILLWAKE_TRY(slept);
  auto woken = stillwake::wake({&in.shard()});
  STILLWAKE_TRY(woken);
  return stillwake::seconds(slept->took) + stillwake::seconds(woken->took);
}

class Turns {
public:
  Turns(Content& content, Tenant& awake, Tenant& asleep) : content_(content), awake_(&awake), asleep_(&asleep) {}

  /// Runs `count` turns; answers their median seconds.
  template <class Turn> Result<double> run(int count, const char* name, Turn&& turn) {
    std::vector<double> all;
    for (int i = 0; i < count; ++i) {
      auto took = turn(*awake_, *asleep_);
      STILLWAKE_TRY(took);
      std::swap(awake_, asleep_);
      auto wrong = awake_->count_wrong(content_);
      STILLWAKE_TRY(wrong);
      wrong_ += *wrong;
      fmt::print("{:<14} {} goes, {} comes: {:.4f} s, bytes different {}\n", name, asleep_->shard().name(),
                 awake_->shard().name(), *took, *wrong);
      all.push_back(*took);
      STILLWAKE_TRY(awake_->work(content_)); // so that the next turn has something to copy
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }
  std::uint64_t wrong() const { return wrong_; }

private:
  Content& content_;
  Tenant* awake_;
  Tenant* asleep_;
  std::uint64_t wrong_ = 0;
};

Result<bool> run(const TenantOptions& options) {
  stillwake::DriverOptions driver_options;
  if (options.emulated) {
    driver_options.kind = stillwake::DriverKind::kEmulated;
  }
  if (std::getenv("STILLWAKE_EMULATED_MEMORY") == nullptr) {
    driver_options.emulated_memory = kEmulatedMemory; // a GPU's driver has no use for it
  }
  auto driver = Driver::open(driver_options);
  STILLWAKE_TRY(driver);
  fmt::print("driver: {}\n", driver->describe());
  const DeviceIndex device(options.device);
  auto content = Content::open(*driver, device);
  STILLWAKE_TRY(content);
  auto size = tenant_size(*driver, options);
  STILLWAKE_TRY(size);

  const auto neighbour = crowd(*driver, device, *size);
  STILLWAKE_TRY(neighbour);

  std::vector<std::byte> pattern(std::min(*size, kLargestBlock).size());
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = static_cast<std::byte>(i * 131 + (i >> 12));
  }
  auto first = Tenant::create(*driver, device, "rollout", *size, pattern);
  STILLWAKE_TRY(first);
  STILLWAKE_TRY(first->work(*content));
  STILLWAKE_TRY(stillwake::sleep({&first->shard()}));
  auto second = Tenant::create(*driver, device, "trainer", *size, pattern);
  STILLWAKE_TRY(second);
  STILLWAKE_TRY(second->work(*content));

  Turns turns(*content, *second, *first);
  STILLWAKE_TRY(turns.run(1, "first", turn_in_order)); // pins the second tenant's host memory: compared with nothing
  auto swapped = turns.run(options.turns, "swap", turn_by_swap);
  STILLWAKE_TRY(swapped);
  auto in_order = turns.run(options.turns, "sleep + wake", turn_in_order);
  STILLWAKE_TRY(in_order);
  fmt::print("a turn by swap {:.4f} s, by sleep and wake {:.4f} s: {:.2f} of it\nbytes different {}\n", *swapped,
             *in_order, *swapped / *in_order, turns.wrong());
  return turns.wrong() == 0;
}

} // namespace

int main(int count, char** words) {
  TenantOptions options;
  CLI::App app("Two engines in one process, each as large as most of the device, take turns by swap.", "two_tenants");
  const CLI::Validator finite( // no range refuses a number that is none
      [](const std::string& word) {
        const bool is_none = std::isnan(std::strtod(word.c_str(), nullptr));
        return is_none ? "Value " + word + " is no number" : std::string();
      },
      "");
  app.add_option("--device", options.device, "which device, 0 is the first")->check(CLI::Range(0, 1023));
  app.add_flag("--emulated", options.emulated, "use the emulated driver; no GPU is needed");
  app.add_option("--turns", options.turns, "turns of each kind")->check(CLI::Range(1, 1000));
  app.add_option("--fill", options.fill, "a tenant's part of the free memory, at most 16 GiB, or 64 MiB emulated")
      ->check(finite)
      ->check(CLI::Range(0.001, 0.999));
  app.add_option("--gibibytes", options.gibibytes, "a tenant's size, instead of --fill")
      ->check(finite)
      ->check(CLI::Range(0.004, 1024.0)); // two pages: of one and a half tenants there must be whole pages, too
  app.footer("Exit status: 0 when every byte is right, 1 when not, 2 for a wrong option.");
  try {
    app.parse(count, words);
    const auto done = run(options);
    if (!done) {
      std::fflush(stdout);
      fmt::print(stderr, "two_tenants: {}\n", done.error().describe());
      return done.error().code == stillwake::ErrorCode::kInvalidArgument ? 2 : 1;
    }
    return *done ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error);
    }
    std::cerr << "two_tenants: " << error.what() << " (--help lists the options)\n";
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "two_tenants: {}\n", error.what());
    return 1;
  }
}
