// SPDX-License-Identifier: Apache-2.0
#include "tests/model/shard_model_run.h"

#include <algorithm>
#include <cstring>

namespace stillwake {
namespace {

constexpr Bytes kCapacity = kMiB * 96;

// The emulation's device memory is ordinary memory at the same address, so the model reads and writes it directly.
std::uint64_t* words(void* pointer) { return static_cast<std::uint64_t*>(pointer); }

template <class T> Result<void> outcome_of(Result<T> result) {
  return result ? Result<void>() : Result<void>(failure(std::move(result).error()));
}

bool is_transition(ShardAction action) {
  return action == ShardAction::kSleep || action == ShardAction::kWake || action == ShardAction::kSwap ||
         action == ShardAction::kStage || action == ShardAction::kPrepare || action == ShardAction::kTrim;
}

} // namespace

ShardModelRun::ShardModelRun() {
  DriverOptions options;
  options.kind = DriverKind::kEmulated;
  options.emulated_devices = 1;
  options.emulated_memory = kCapacity;
  options.faults = "";
  driver_.emplace(std::move(*Driver::open(options)));
  STILLWAKE_CHECK(set_pinning_threads(*driver_, 2).has_value());
  for (int i = 0; i < kModelShards; ++i) {
    shards_.push_back(std::make_unique<Shard>(std::move(*Shard::create(*driver_, model_shard(i)))));
  }
}

ShardModelRun::~ShardModelRun() {
  driver_->gate().arm({});
  shards_.clear();
  STILLWAKE_CHECK_EQ(driver_->emulation()->live_handles(), 0u);
  STILLWAKE_CHECK_EQ(driver_->emulation()->live_reservations(), 0u);
}

ShardSet ShardModelRun::set(std::uint64_t mask) {
  ShardSet set;
  for (int i = 0; i < kModelShards; ++i) {
    if ((mask >> i & 1) != 0) {
      set.push_back(&*shards_[i]);
    }
  }
  return set;
}

std::optional<std::string> ShardModelRun::step(const ShardOperation& operation) {
  std::optional<std::string> wrong;
  if (fail_ && (is_transition(operation.action) || operation.action == ShardAction::kAllocate)) {
    driver_->gate().arm({Fault{std::nullopt, *fail_, CUDA_ERROR_OUT_OF_MEMORY, false}});
    fail_.reset();
  }
  switch (operation.action) {
  case ShardAction::kAllocate: wrong = allocate(operation); break;
  case ShardAction::kFree: wrong = free(operation); break;
  case ShardAction::kWrite:
    if (ModelBlock* block = model_.nth(operation.shard, operation.a); block && !model_.asleep[operation.shard]) {
      write(*block, block->pointer, operation.b);
    }
    break;
  case ShardAction::kHostWrite:
    if (ModelBlock* block = model_.nth(operation.shard, operation.a); block && model_.asleep[operation.shard]) {
      auto address = shards_[operation.shard]->host_address(block->pointer);
      if (address.has_value() != (model_shard(operation.shard).host_copy == HostCopy::kReadable)) {
        wrong = "host_address: " + (address ? std::string("an address") : address.error().describe());
      } else if (address) {
        if (!shards_[operation.shard]->mark_host_dirty(block->pointer, block->size)) {
          wrong = "mark_host_dirty failed";
        }
        write(*block, *address, operation.b);
      }
    }
    break;
  case ShardAction::kFail: fail_ = operation.a; return std::nullopt;
  case ShardAction::kCapacity: driver_->emulation()->set_capacity(DeviceIndex(0), kMiB * operation.a); break;
  case ShardAction::kBudget:
    set_host_budget(*driver_, operation.a == 0 ? std::nullopt : std::optional<Bytes>(kMiB * operation.a));
    break;
  default: wrong = transition(operation); break;
  }
  driver_->gate().arm({});
  return wrong ? wrong : check();
}

void ShardModelRun::write(ModelBlock& block, void* to, std::uint64_t seed) {
  for (std::uint64_t i = 0; i < block.size.count() / 8; ++i) {
    words(to)[i] = model_word(seed, i);
  }
  block.seed = seed;
}

std::optional<std::string> ShardModelRun::compare(const ModelBlock& block) {
  for (std::uint64_t i = 0; block.seed && i < block.size.count() / 8; ++i) {
    if (words(block.pointer)[i] != model_word(*block.seed, i)) {
      return "word " + std::to_string(i) + " of a block of " + std::to_string(block.size.count()) + " bytes in shard " +
             std::to_string(block.shard) + " is not what was written with seed " + std::to_string(*block.seed);
    }
  }
  return std::nullopt;
}

std::optional<std::string> ShardModelRun::allocate(const ShardOperation& operation) {
  const Bytes size(operation.a);
  auto block =
      shards_[operation.shard]->allocate(size, nullptr, operation.b == 1 ? BlockKind::kOneHandle : BlockKind::kShared);
  if (model_.asleep[operation.shard]) {
    return block || block.error().code != ErrorCode::kAsleep
               ? std::optional<std::string>("allocating asleep did not fail")
               : std::nullopt;
  }
  if (!block) {
    const bool known = block.error().code == ErrorCode::kOutOfDeviceMemory ||
                       block.error().code == ErrorCode::kInvalidArgument || driver_->gate().injected() > 0;
    return known ? std::nullopt : std::optional<std::string>("allocate: " + block.error().describe());
  }
  for (const ModelBlock& other : model_.blocks) {
    const auto* mine = static_cast<std::byte*>(*block);
    const auto* theirs = static_cast<std::byte*>(other.pointer);
    if (mine < theirs + other.size.size() && theirs < mine + size.size()) {
      return "a block overlaps another of shard " + std::to_string(other.shard);
    }
  }
  model_.blocks.push_back({operation.shard, *block, size, std::nullopt});
  write(model_.blocks.back(), *block, model_.blocks.size() * 31 + operation.a);
  return std::nullopt;
}

std::optional<std::string> ShardModelRun::free(const ShardOperation& operation) {
  ModelBlock* block = model_.nth(operation.shard, operation.a);
  if (block == nullptr) {
    return std::nullopt;
  }
  if (!model_.asleep[operation.shard]) {
    if (auto wrong = compare(*block)) {
      return "before it is freed, " + *wrong;
    }
  }
  void* pointer = block->pointer;
  Shard& shard = *shards_[operation.shard];
  auto freed = operation.b == 0 ? shard.free(pointer, nullptr) : shard.free(pointer);
  if (!freed) {
    return "free: " + freed.error().describe();
  }
  if (shard.free(pointer, nullptr)) {
    return "a double free was not noticed";
  }
  model_.blocks.erase(model_.blocks.begin() + (block - model_.blocks.data()));
  return std::nullopt;
}

Result<void> ShardModelRun::carry_out(const ShardOperation& operation, const ShardSet& out, const ShardSet& in) {
  switch (operation.action) {
  case ShardAction::kSleep: {
    SleepOptions options;
    options.checked = operation.b == 1;
    return outcome_of(sleep(out, options));
  }
  case ShardAction::kWake: {
    if (operation.b == 0) {
      return outcome_of(wake(in));
    }
    auto ticket = wake(in, std::vector<Stream>{nullptr});
    return ticket ? outcome_of(ticket->result()) : Result<void>(failure(std::move(ticket).error()));
  }
  case ShardAction::kSwap: return outcome_of(swap(out, in));
  case ShardAction::kStage: return operation.b == 0 ? outcome_of(stage_sleep(out)) : outcome_of(stage_wake(in));
  case ShardAction::kPrepare: return shards_[operation.shard]->prepare();
  default: return outcome_of(shards_[operation.shard]->trim());
  }
}

std::optional<std::string> ShardModelRun::transition(const ShardOperation& operation) {
  const bool swaps = operation.action == ShardAction::kSwap;
  const ShardSet out = set(operation.a);
  const ShardSet in = set(swaps ? operation.b & ~operation.a : operation.a);
  const bool by_set = operation.action != ShardAction::kPrepare && operation.action != ShardAction::kTrim;
  if (by_set && (out.empty() || in.empty())) {
    return std::nullopt;
  }
  const Result<void> done = carry_out(operation, out, in);
  return follow(operation, done);
}

// Takes over which shards sleep now. A success must have done all of it; a failure nothing, but for a wake whose
// verdict could not be awaited: asked again, it is there.
std::optional<std::string> ShardModelRun::follow(const ShardOperation& operation, const Result<void>& outcome) {
  const bool injected = driver_->gate().injected() > 0;
  driver_->gate().arm({});
  if (!outcome && !injected) {
    const ErrorCode code = outcome.error().code;
    const bool expected = code == ErrorCode::kOutOfDeviceMemory || code == ErrorCode::kOverBudget ||
                          (operation.action == ShardAction::kPrepare && code == ErrorCode::kAsleep);
    if (!expected) {
      return operation.describe() + ": " + outcome.error().describe();
    }
  }
  for (int i = 0; i < kModelShards; ++i) {
    Shard& shard = *shards_[i];
    if (shard.state() == ShardState::kWaking) {
      if (auto woken = wake({&shard}); !woken) {
        return "asked again: " + woken.error().describe();
      }
    }
    const bool goes_in = operation.action == ShardAction::kSwap
                             ? (operation.b & ~operation.a) >> i & 1
                             : operation.action == ShardAction::kWake && operation.a >> i & 1;
    const bool goes_out =
        (operation.action == ShardAction::kSleep || operation.action == ShardAction::kSwap) && operation.a >> i & 1;
    const bool asleep = shard.state() == ShardState::kAsleep;
    if (!asleep && shard.state() != ShardState::kAwake) {
      return "shard " + std::to_string(i) + " is " + to_string(shard.state());
    }
    if (outcome && asleep != (goes_out || (model_.asleep[i] && !goes_in))) {
      return "shard " + std::to_string(i) + " is " + to_string(shard.state()) + " after a success";
    }
    if (!outcome && asleep != model_.asleep[i] && !(goes_in && !asleep)) {
      return "shard " + std::to_string(i) + " is " + to_string(shard.state()) + " after a failure";
    }
    if (model_.asleep[i] && !asleep) {
      model_.woke(i);
    } else if (!outcome && goes_out && operation.action == ShardAction::kSwap && !asleep &&
               model_shard(i).policy == Policy::kDiscard) {
      for (ModelBlock& block : model_.blocks) {
        if (block.shard == i) {
          block.seed.reset(); // put back with nothing kept: some of it is zeros now
        }
      }
    }
    model_.asleep[i] = asleep;
  }
  return std::nullopt;
}

std::optional<std::string> ShardModelRun::check() {
  std::uint64_t handles = 0;
  for (int i = 0; i < kModelShards; ++i) {
    shards_[i]->core().check_invariants();
    const ShardStats stats = shards_[i]->stats();
    handles += stats.handles;
    const auto own = static_cast<std::uint64_t>(std::count_if(
        model_.blocks.begin(), model_.blocks.end(), [&](const ModelBlock& block) { return block.shard == i; }));
    if (stats.blocks != own) {
      return "shard " + std::to_string(i) + " counts " + std::to_string(stats.blocks) + " blocks, not " +
             std::to_string(own);
    }
  }
  if (driver_->emulation()->live_handles() != handles) {
    return std::to_string(driver_->emulation()->live_handles()) + " handles live, " + std::to_string(handles) +
           " known";
  }
  // One block a step keeps programs fast; over a program every block is compared many times.
  if (!model_.blocks.empty()) {
    const ModelBlock& block = model_.blocks[checked_++ % model_.blocks.size()];
    if (!model_.asleep[block.shard]) {
      return compare(block);
    }
  }
  return std::nullopt;
}

std::optional<std::string> ShardModelRun::finish() {
  driver_->emulation()->set_capacity(DeviceIndex(0), kMiB * 512);
  set_host_budget(*driver_, std::nullopt);
  fail_.reset();
  if (auto wrong = step({ShardAction::kWake, 0, (1u << kModelShards) - 1, 0})) {
    return wrong;
  }
  for (const ModelBlock& block : model_.blocks) {
    if (auto wrong = compare(block)) {
      return "at the end, " + *wrong;
    }
  }
  return std::nullopt;
}

} // namespace stillwake
