// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/transitions.h"

#include "torch_plugin/library/torch_error.h"

namespace stillwake::pytorch {
namespace {

ShardSet core_set(const TensorShards& set) {
  ShardSet cores;
  for (TensorShard* shard : set) {
    cores.push_back(&shard->core());
  }
  return cores;
}

/// Whether its memory may be gone, so that a touch must raise.
bool is_usable(TensorShard& shard) {
  switch (shard.core().state()) {
  case ShardState::kAwake:
  case ShardState::kWaking:
  case ShardState::kCorrupted: return true;
  default: return false;
  }
}

void raise_guards(const TensorShards& set) {
  for (TensorShard* shard : set) {
    shard->guard().raise("stillwake: shard '" + shard->name() +
                         "' is asleep: its device memory is given back. Wake it before this tensor is used, or read "
                         "the host copy through host_view");
  }
}

/// The guard follows what the transition left, whether it succeeded or not.
void settle_guards(const TensorShards& set) {
  for (TensorShard* shard : set) {
    if (is_usable(*shard)) {
      shard->guard().lower();
    }
  }
}

void end_host_views(const TensorShards& set) {
  for (TensorShard* shard : set) {
    if (!is_usable(*shard)) {
      shard->host_views().end("stillwake: shard '" + shard->name() +
                              "' woke (or began to), which ended this host view; use the tensor itself");
    }
  }
}

} // namespace

Report sleep(const TensorShards& set, const SleepOptions& options) {
  const ShardSet cores = core_set(set);
  raise_guards(set);
  Result<Report> report = stillwake::sleep(cores, options);
  settle_guards(set);
  return value_or_throw(std::move(report));
}

Report wake(const TensorShards& set, const WakeOptions& options) {
  const ShardSet cores = core_set(set);
  end_host_views(set);
  Result<Report> report = stillwake::wake(cores, options);
  settle_guards(set);
  return value_or_throw(std::move(report));
}

Ticket wake(const TensorShards& set, const std::vector<Stream>& streams, const WakeOptions& options) {
  for (const TensorShard* shard : set) {
    if (shard->device().is_cpu()) {
      throw TorchError(ErrorCode::kInvalidArgument, "waking shard '" + shard->name() +
                                                        "' with streams: CPU tensors wait for no stream; wake without");
    }
  }
  const ShardSet cores = core_set(set);
  end_host_views(set);
  Result<Ticket> ticket = stillwake::wake(cores, streams, options);
  settle_guards(set);
  return value_or_throw(std::move(ticket));
}

Report swap(const TensorShards& outgoing, const TensorShards& incoming, const SleepOptions& sleep_options,
            const WakeOptions& wake_options) {
  const ShardSet leaving = core_set(outgoing);
  const ShardSet coming = core_set(incoming);
  raise_guards(outgoing);
  end_host_views(incoming);
  Result<Report> report = stillwake::swap(leaving, coming, sleep_options, wake_options);
  settle_guards(outgoing);
  settle_guards(incoming);
  return value_or_throw(std::move(report));
}

} // namespace stillwake::pytorch
