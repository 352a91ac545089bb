// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/transitions.h"

#include "allocator/base/in_reach.h"
#include "torch_plugin/library/cuda_side.h"
#include "torch_plugin/library/torch_error.h"

#include <optional>
#include <set>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace stillwake::pytorch {
namespace {

/// Throws kLost in a child made by fork, before any lock or guard: their answers there are those of the parent.
ShardSet core_set(const TensorShards& set) {
  value_or_throw(in_reach());
  ShardSet cores;
  for (TensorShard* shard : set) {
    cores.push_back(&shard->core());
  }
  return cores;
}

/// Nothing for a shard that was closed meanwhile.
std::optional<ShardState> state_of(TensorShard& shard) {
  try {
    return shard.core().state();
  } catch (const TorchError&) {
    return std::nullopt;
  }
}

/// Whether its tensors may be touched. A closed shard has none. `waking`: the answer for one whose content is arriving.
bool is_usable(TensorShard& shard, bool waking) {
  const std::optional<ShardState> state = state_of(shard);
  if (state == ShardState::kWaking) {
    return waking;
  }
  return !state || *state == ShardState::kAwake || *state == ShardState::kCorrupted;
}

/// How often the shard woke, while it sleeps: as long as this stays the same, so does its host copy.
std::optional<std::uint64_t> wakes_of_sleeping(TensorShard& shard) {
  return state_of(shard) == ShardState::kAsleep ? std::optional(shard.core().stats().wakes) : std::nullopt;
}

/// While it lives the tensors of `leaving` and the host views of `coming` raise. What they do afterwards follows the
/// state that the transition left, whether it succeeded or not.
class Held {
public:
  Held(TensorShards leaving, TensorShards coming) : leaving_(std::move(leaving)), coming_(std::move(coming)) {
    std::set<TensorShard*> all(leaving_.begin(), leaving_.end()); // each once
    all.insert(coming_.begin(), coming_.end());
    for (TensorShard* shard : all) {
      gates_.emplace_back(shard->transition_gate());
    }
    for (TensorShard* shard : leaving_) {
      shard->guard().hold("stillwake: shard '" + shard->name() +
                          "' is asleep: its device memory is given back. Wake it before this tensor is used, or read "
                          "the host copy through host_view");
    }
    for (TensorShard* shard : coming_) {
      wakes_.push_back(wakes_of_sleeping(*shard));
      shard->host_views().hold("stillwake: shard '" + shard->name() +
                               "' woke (or began to), which ended this host view; use the tensor itself");
    }
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    for (TensorShard* shard : leaving_) {
      shard->guard().release();
      settle_guard(*shard, true);
    }
    for (std::size_t at = 0; at < coming_.size(); ++at) {
      TensorShard& shard = *coming_[at];
      settle_guard(shard, streams_wait_);
      shard.host_views().settle([&] { return wakes_[at] && wakes_of_sleeping(shard) == wakes_[at]; });
    }
  }

  /// The wake succeeded and streams wait for it. Without this, content that is still arriving (a wake that failed while
  /// it waited for the verdict) stays guarded until the wake is asked again: nobody waits, so anybody might read half.
  void streams_wait() { streams_wait_ = true; }

private:
  static void settle_guard(TensorShard& shard, bool waking) {
    shard.guard().settle([&shard, waking] { return is_usable(shard, waking); });
  }

  std::vector<std::shared_lock<std::shared_mutex>> gates_; // first, so that they open last
  TensorShards leaving_;
  TensorShards coming_;
  bool streams_wait_ = false;
  std::vector<std::optional<std::uint64_t>> wakes_;
};

/// The streams that PyTorch knows to exist: a capture on one of them is refused, not spoilt.
SleepOptions with_current_streams(SleepOptions options, const TensorShards& set) {
  for (const TensorShard* shard : set) {
    if (!shard->device().is_cpu()) {
      options.may_capture.push_back(current_stream(shard->device()));
    }
  }
  return options;
}

/// PyTorch hands free parts of a segment to a thread inside a CUDA pool without a call to us, asleep or not, and the
/// first write there would end the context. Asked once the guard is up: see Pool.
void refuse_pools_in_use(const TensorShards& leaving) {
  for (const TensorShard* shard : leaving) {
    if (CudaSide* side = cuda_side(); !shard->device().is_cpu() && side != nullptr && side->is_inside_pool(*shard)) {
      throw TorchError(ErrorCode::kBusy, "sleeping shard '" + shard->name() +
                                             "': a thread is inside its pool; a pool wraps construction, leave it "
                                             "before the shard sleeps");
    }
  }
}

} // namespace

Report sleep(const TensorShards& set, const SleepOptions& options) {
  const ShardSet cores = core_set(set);
  const Held held(set, {});
  refuse_pools_in_use(set);
  return value_or_throw(stillwake::sleep(cores, with_current_streams(options, set)));
}

Report wake(const TensorShards& set, const WakeOptions& options) {
  const ShardSet cores = core_set(set);
  const Held held({}, set);
  return value_or_throw(stillwake::wake(cores, options));
}

Ticket wake(const TensorShards& set, const std::vector<Stream>& streams, const WakeOptions& options) {
  for (const TensorShard* shard : set) {
    if (shard->device().is_cpu()) {
      throw TorchError(ErrorCode::kInvalidArgument, "waking shard '" + shard->name() +
                                                        "' with streams: CPU tensors wait for no stream; wake without");
    }
  }
  const ShardSet cores = core_set(set);
  Held held({}, set);
  Ticket ticket = value_or_throw(stillwake::wake(cores, streams, options));
  held.streams_wait();
  return ticket;
}

Report swap(const TensorShards& outgoing, const TensorShards& incoming, const SleepOptions& sleep_options,
            const WakeOptions& wake_options) {
  const ShardSet leaving = core_set(outgoing);
  const ShardSet coming = core_set(incoming);
  const Held held(outgoing, incoming);
  refuse_pools_in_use(outgoing);
  return value_or_throw(stillwake::swap(leaving, coming, with_current_streams(sleep_options, outgoing), wake_options));
}

} // namespace stillwake::pytorch
