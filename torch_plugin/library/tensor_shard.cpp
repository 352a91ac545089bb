// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/tensor_shard.h"

#include "allocator/base/in_reach.h"
#include "torch_plugin/library/cuda_side.h"
#include "torch_plugin/library/last_failure.h"
#include "torch_plugin/library/session.h"
#include "torch_plugin/library/torch_error.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace stillwake::pytorch {
namespace {

const char* to_string(Policy policy) {
  switch (policy) {
  case Policy::kPreserve: return "preserve";
  case Policy::kDiscard: return "discard";
  case Policy::kFrozen: return "frozen";
  }
  return "";
}

ShardOptions core_options(const ShardSpec& spec, ShardOwner& owner) {
  ShardOptions options;
  options.name = spec.name;
  options.device = DeviceIndex(spec.device.has_index() ? spec.device.index() : 0);
  options.policy = spec.policy;
  options.host_copy = spec.host_copy;
  options.backing = spec.backing;
  options.trust = spec.trust;
  options.addresses = spec.addresses;
  options.owner = spec.device.is_cpu() ? nullptr : &owner;
  return options;
}

/// A lost device, or a fork, has nothing left to give back; anything else is worth a line.
void tell_if_it_failed(const Result<void>& freed) {
  if (!freed && freed.error().code != ErrorCode::kLost) {
    Session::log(LogLevel::kError, freed.error().describe().c_str());
  }
}

} // namespace

std::string ShardSpec::difference(const ShardSpec& other) const {
  if (policy != other.policy) {
    return std::string("policy '") + to_string(policy) + "', not '" + to_string(other.policy) + "'";
  }
  if (trust != other.trust) {
    return trust ? "trust=True" : "trust=False";
  }
  if (host_copy != other.host_copy) {
    return host_copy == HostCopy::kReadable ? "host_copy 'readable', not 'packed'"
                                            : "host_copy 'packed', not 'readable'";
  }
  if (backing != other.backing) {
    return backing == Backing::kRetain ? "backing 'retain', not 'release'" : "backing 'release', not 'retain'";
  }
  if (other.addresses && addresses != other.addresses) {
    const auto told = [](const std::optional<Bytes>& size) {
      return size ? std::to_string(size->count()) : std::string("unset (the memory of the device)");
    };
    return "addresses " + told(addresses) + ", not " + told(other.addresses);
  }
  return "";
}

c10::DataPtr ShardAllocator::allocate(std::size_t bytes) {
  if (bytes == 0) {
    return {nullptr, shard_.device()};
  }
  void* block = shard_.allocate(Bytes(bytes), current_stream(shard_.device()));
  return {block, block, &free_in_its_shard, shard_.device()};
}

c10::DeleterFnPtr ShardAllocator::raw_deleter() const { return &free_in_its_shard; }

void ShardAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  TORCH_CHECK(shard_.device().is_cpu(), "stillwake: a storage of ", shard_.device().str(),
              " is cloned by its operators");
  default_copy_data(to, from, bytes);
}

TensorShard::TensorShard(Driver& driver, ShardSpec spec)
    : spec_(std::move(spec)), owner_(*this),
      core_(std::make_unique<Shard>(value_or_throw(Shard::create(driver, core_options(spec_, owner_))))),
      first_address_(reinterpret_cast<std::uintptr_t>(core_->first_address())),
      end_address_(first_address_ + core_->stats().reserved_addresses.count()), open_(core_.get()), allocator_(*this) {}

std::vector<BlockLiveRanges> TensorShard::Owner::live_ranges() {
  CudaSide* side = cuda_side();
  return side == nullptr ? std::vector<BlockLiveRanges>() : side->live_ranges(shard_);
}

bool TensorShard::Owner::memory_is_short(DeviceIndex device, Bytes) {
  CudaSide* side = cuda_side();
  return side != nullptr && side->empty_cache(device);
}

bool TensorShard::contains(const void* address) const noexcept {
  const auto asked = reinterpret_cast<std::uintptr_t>(address);
  return first_address_ <= asked && asked < end_address_ && open_.load(std::memory_order_acquire) != nullptr;
}

Shard& TensorShard::core() {
  Shard* shard = open_.load(std::memory_order_acquire);
  if (shard == nullptr) {
    throw TorchError(ErrorCode::kInvalidArgument, "shard '" + name() + "' was closed");
  }
  return *shard;
}

Result<void*> TensorShard::try_allocate(Bytes size, Stream stream) {
  Shard& shard = core();
  Result<void*> block = shard.allocate(size, stream);
  if (!block) {
    // Who asks for more than a device has meets a full device, as with PyTorch's own allocators.
    if (block.error().code == ErrorCode::kInvalidArgument && size > shard.stats().reserved_addresses) {
      block.error().code = ErrorCode::kOutOfDeviceMemory;
    }
    if (block.error().code == ErrorCode::kOutOfDeviceMemory) {
      block.error().message.insert(0, "shard '" + name() + "': ");
    }
    note_failure(block.error());
  }
  return block;
}

void* TensorShard::allocate(Bytes size, Stream stream) {
  Result<void*> block = try_allocate(size, stream);
  if (!block && block.error().code == ErrorCode::kOutOfDeviceMemory) {
    // What an adopt moves out of PyTorch's memory goes to PyTorch's cache first: without this no more than half of a
    // device could be adopted.
    CudaSide* side = device().is_cpu() ? nullptr : cuda_side();
    if (side != nullptr && side->empty_cache(core().device())) {
      block = try_allocate(size, stream);
    }
  }
  if (!block) {
    if (block.error().code == ErrorCode::kOutOfDeviceMemory) {
      throw FullDevice(std::move(block).error());
    }
    throw TorchError(std::move(block).error());
  }
  return *block;
}

void TensorShard::free(void* block) noexcept {
  if (Shard* shard = open_.load(std::memory_order_acquire)) {
    tell_if_it_failed(shard->free(block));
  }
}

void TensorShard::free(void* block, Stream stream) noexcept {
  if (Shard* shard = open_.load(std::memory_order_acquire)) {
    tell_if_it_failed(shard->free(block, stream));
  }
}

Bytes TensorShard::trim() {
  value_or_throw(in_reach());
  if (core().state() == ShardState::kAsleep && host_views_.any()) {
    return Bytes(0);
  }
  return value_or_throw(core().trim());
}

void TensorShard::close() {
  if (CudaSide* side = cuda_side(); side != nullptr && !device().is_cpu()) {
    side->give_back(*this);
  }
  const ShardStats stats = core().stats();
  if (stats.blocks != 0) {
    throw TorchError(ErrorCode::kBusy, "closing shard '" + name() + "': " + std::to_string(stats.blocks) +
                                           " blocks of " + std::to_string(stats.allocated.count()) +
                                           " bytes are in use; drop their tensors first");
  }
  open_.store(nullptr, std::memory_order_release);
  core_.reset();
}

Stream current_stream(c10::Device device) {
  if (device.is_cpu()) {
    return nullptr;
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  return static_cast<Stream>(guard.getStream(device).native_handle());
}

void free_in_its_shard(void* block) {
  if (TensorShard* shard = Session::get().find(block)) {
    shard->free(block);
  }
}

} // namespace stillwake::pytorch
