// SPDX-License-Identifier: Apache-2.0
// A TensorShard is a Shard as PyTorch meets it: an allocator for storages, the guard of those that were adopted, and
// the host views that were given out while it sleeps. One a name and device; made by the Session.
#pragma once

#include "../../shard/stillwake.h"
#include "guard.h"
#include "host_views.h"

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

namespace stillwake::pytorch {

/// What makes a shard. The device is "cuda:N" ("cuda": the current one), or "cpu" on the emulated driver.
struct ShardSpec {
  std::string name;
  c10::Device device = c10::kCPU;
  Policy policy = Policy::kPreserve;
  HostCopy host_copy = HostCopy::kReadable;
  Backing backing = Backing::kRetain;
  bool trust = false;
  std::optional<Bytes> addresses;

  /// How the other differs, "policy preserve, not discard", or empty.
  std::string difference(const ShardSpec& other) const;
};

/// The allocator that storages of a shard are given, so that a later resize_ stays in it.
class ShardAllocator final : public c10::Allocator {
public:
  explicit ShardAllocator(class TensorShard& shard) : shard_(shard) {}

  /// Throws c10::OutOfMemoryError for a full device, TorchError for the rest (asleep, busy, lost), and notes either for
  /// the thread: see last_failure.h.
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

private:
  TensorShard& shard_;
};

class TensorShard {
public:
  TensorShard(Driver& driver, ShardSpec spec);

  const ShardSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  c10::Device device() const { return spec_.device; }
  bool contains(const void* address) const noexcept;

  /// The core's shard. Throws kInvalidArgument once the shard is closed.
  Shard& core();
  ShardAllocator& allocator() { return allocator_; }
  Guard& guard() { return guard_; }
  HostViews& host_views() { return host_views_; }
  /// Transitions pass it together (the core says which of them is refused); who moves a storage in passes alone, so
  /// that no sleep comes between its new memory and its guard.
  std::shared_mutex& transition_gate() { return transition_gate_; }
  /// Those that move storages in, one after the other.
  std::mutex& adoption_mutex() { return adoption_mutex_; }

  /// Memory for `stream`; never null. Throws as ShardAllocator::allocate.
  void* allocate(Bytes size, Stream stream);
  /// The same with the failure as a value, noted for the thread. Throws kInvalidArgument once closed.
  Result<void*> try_allocate(Bytes size, Stream stream);
  /// As Shard::trim; nothing goes while somebody holds a view of the host memory. Throws TorchError.
  Bytes trim();
  /// Gives a block back, from any thread and in every state; never throws. A failure is a line on stderr.
  void free(void* block) noexcept;
  /// The same for a block whose last work was queued on this stream.
  void free(void* block, Stream stream) noexcept;

  /// Ends the core's shard when no block lives; throws kBusy otherwise. By the Session alone.
  void close();

private:
  /// What the core asks about the shard's blocks. CPU tensors are blocks of their own, so only CUDA has answers.
  class Owner final : public ShardOwner {
  public:
    explicit Owner(TensorShard& shard) : shard_(shard) {}
    std::vector<BlockLiveRanges> live_ranges() override;
    bool memory_is_short(DeviceIndex device, Bytes needed) override;

  private:
    TensorShard& shard_;
  };

  ShardSpec spec_;
  Owner owner_;
  std::unique_ptr<Shard> core_;
  // The reservation's addresses, which `contains` may be asked about while the shard is closed in another thread.
  std::uintptr_t first_address_;
  std::uintptr_t end_address_;
  std::atomic<Shard*> open_; // null once closed
  ShardAllocator allocator_;
  Guard guard_{*this};
  HostViews host_views_;
  std::mutex adoption_mutex_; // taken before the gate
  std::shared_mutex transition_gate_;
};

/// Where PyTorch's next operator of this thread on the device goes; null for CPU tensors, which have no stream.
Stream current_stream(c10::Device device);

/// The deleter of every storage in a shard, which it finds by the address. Never throws, queues only.
void free_in_its_shard(void* block);

} // namespace stillwake::pytorch
