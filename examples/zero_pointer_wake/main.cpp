// SPDX-License-Identifier: Apache-2.0
// zero_pointer_wake: the weights of a real model go to sleep, a neighbour takes their memory and scribbles over it, and
// they wake at the same addresses with the same bytes.
#include "examples/zero_pointer_wake/demo_options.h"
#include "examples/zero_pointer_wake/model.h"
#include "examples/zero_pointer_wake/tables.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>

namespace {

using namespace example;
using stillwake::Bytes;
using stillwake::DeviceIndex;
using stillwake::Driver;
using stillwake::Report;
using stillwake::Result;

constexpr int kDiffers = 1;
constexpr int kWrongInput = 2;

int tell(const stillwake::Error& error) {
  std::fflush(stdout);
  fmt::print(stderr, "zero_pointer_wake: {}\n", error.describe());
  return error.code == stillwake::ErrorCode::kInvalidArgument ? kWrongInput : kDiffers;
}

/// What is compared: the pointers that were printed with those the model has now, and every byte with the file.
struct Verdict {
  std::size_t pointers_changed = 0;
  std::uint64_t bytes_different = 0;
};

class Demo {
public:
  Demo(Driver& driver, const DemoOptions& options, Content& content, Model& model, BusRates bus)
      : driver_(driver), options_(options), device_(options.device), content_(content), model_(model), bus_(bus) {
    for (const PlacedTensor& placed : model.tensors()) {
      addresses_.push_back(reinterpret_cast<std::uintptr_t>(placed.pointer));
    }
  }

  Result<Verdict> cycle(int number) {
    const auto key = static_cast<unsigned char>(options_.change ? number : 0);
    if (options_.change && number > 0) {
      STILLWAKE_TRY(content_.write(model_.pieces(), key));
      fmt::print("changed every byte\n");
    }
    STILLWAKE_TRY(sleep_and_lend());
    auto woken = stillwake::wake(model_.set());
    STILLWAKE_TRY(woken);
    print_report(*woken, bus_.to_device);
    return compare(key);
  }

private:
  Result<Bytes> free_memory() {
    auto memory = driver_.memory(device_);
    STILLWAKE_TRY(memory);
    return memory->free;
  }

  Result<void> sleep_and_lend() {
    auto before = free_memory();
    STILLWAKE_TRY(before);
    auto slept = stillwake::sleep(model_.set());
    STILLWAKE_TRY(slept);
    print_report(*slept, bus_.to_host);
    auto after = free_memory();
    STILLWAKE_TRY(after);
    fmt::print("  free device memory: {} before, {} now\n", size_text(*before), size_text(*after));
    if (slept->freed == Bytes(0)) {
      return {};
    }
    auto neighbour = NeighbourMemory::take(driver_, device_, slept->freed);
    STILLWAKE_TRY(neighbour);
    STILLWAKE_TRY(content_.lane().fill(neighbour->pointer(), 0xa5, slept->freed));
    STILLWAKE_TRY(content_.lane().synchronize());
    fmt::print("  a neighbour took {}, scribbled over all of it and gave it back\n", size_text(slept->freed));
    if (driver_.kind() == stillwake::DriverKind::kCuda) {
      fmt::print("  the device clears it now (20 GiB: 0.3 s), and a wake at once shares the copy engines with that\n");
    }
    return {};
  }

  Result<Verdict> compare(unsigned char key) {
    Verdict verdict;
    for (std::size_t i = 0; i < addresses_.size(); ++i) {
      const PlacedTensor& placed = model_.tensors()[i];
      const bool is_there = placed.pointer == nullptr || model_.shard(placed.shard).contains(placed.pointer);
      verdict.pointers_changed += is_there && reinterpret_cast<std::uintptr_t>(placed.pointer) == addresses_[i] ? 0 : 1;
    }
    auto different = content_.count_different(model_.pieces(), key);
    STILLWAKE_TRY(different);
    verdict.bytes_different = *different;
    fmt::print("pointers changed {} of {}\nbytes different {} of {}\n", verdict.pointers_changed, addresses_.size(),
               verdict.bytes_different, model_.size().count());
    return verdict;
  }

  Driver& driver_;
  const DemoOptions& options_;
  DeviceIndex device_;
  Content& content_;
  Model& model_;
  BusRates bus_;
  std::vector<std::uintptr_t> addresses_; // as they were before the first sleep
};

Result<bool> run(const DemoOptions& options, const SafetensorsFile& file) {
  stillwake::DriverOptions driver_options;
  if (options.emulated) {
    driver_options.kind = stillwake::DriverKind::kEmulated;
  }
  auto driver = Driver::open(driver_options);
  STILLWAKE_TRY(driver);
  fmt::print("driver: {}\n", driver->describe());
  STILLWAKE_TRY(stillwake::set_pinning_threads(*driver, options.pinning_threads));
  const DeviceIndex device(options.device);
  auto content = Content::open(*driver, device);
  STILLWAKE_TRY(content);
  auto bus = content->measure_bus(*driver, device);
  STILLWAKE_TRY(bus);
  fmt::print("the bus alone, pinned: {:.2f} GB/s to the host, {:.2f} GB/s to the device\n", bus->to_host / 1e9,
             bus->to_device / 1e9);

  auto model = Model::create(*driver, device, file, options.copies);
  STILLWAKE_TRY(model);
  STILLWAKE_TRY(content->write(model->pieces()));
  fmt::print("{}: {} tensors x {} copies, {} in {} shards\n", options.weights, file.tensors().size(), options.copies,
             size_text(model->size()), model->set().size());
  print_tensors(*model, options.all);
  if (options.prepare) {
    const auto begin = std::chrono::steady_clock::now();
    for (stillwake::Shard* shard : model->set()) {
      STILLWAKE_TRY(shard->prepare());
    }
    fmt::print("prepared host memory in {:.3f} s\n", stillwake::seconds(std::chrono::steady_clock::now() - begin));
  }
  Demo demo(*driver, options, *content, *model, *bus);
  bool as_it_was = true;
  for (int number = 0; number < options.cycles; ++number) {
    if (options.cycles > 1) {
      fmt::print("cycle {} of {}\n", number + 1, options.cycles);
    }
    auto verdict = demo.cycle(number);
    STILLWAKE_TRY(verdict);
    as_it_was = as_it_was && verdict->pointers_changed == 0 && verdict->bytes_different == 0;
  }
  return as_it_was;
}

} // namespace

int main(int count, char** words) {
  try {
    int status = 0;
    const auto options = read_options(count, words, status);
    if (!options) {
      return status;
    }
    const auto file = SafetensorsFile::open(options->weights);
    if (!file) {
      return tell(file.error());
    }
    if (file->tensors().empty()) {
      return tell({stillwake::ErrorCode::kInvalidArgument, 0, "", options->weights + ": holds no tensor"});
    }
    const auto done = run(*options, *file);
    if (!done) {
      return tell(done.error());
    }
    return *done ? 0 : kDiffers;
  } catch (const std::exception& error) {
    fmt::print(stderr, "zero_pointer_wake: {}\n", error.what());
    return kDiffers;
  }
}
