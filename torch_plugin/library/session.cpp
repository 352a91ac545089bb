// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/session.h"

#include "allocator/base/in_reach.h"
#include "torch_plugin/library/torch_error.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdio>

namespace stillwake::pytorch {
namespace {

/// CPU tensors live on the emulated device, CUDA tensors on the real one.
void check_device(const Driver& driver, c10::Device device) {
  const bool emulated = driver.kind() == DriverKind::kEmulated;
  if (emulated && !device.is_cpu()) {
    throw TorchError(ErrorCode::kInvalidArgument,
                     "a shard on " + device.str() + ": the emulated driver serves CPU tensors, so device is \"cpu\"");
  }
  if (!emulated && !device.is_cuda()) {
    throw TorchError(
        ErrorCode::kInvalidArgument,
        "a shard on " + device.str() +
            ": the CUDA driver serves CUDA tensors, so device is \"cuda\" or \"cuda:N\" (CPU tensors sleep "
            "on the emulated driver: STILLWAKE_DRIVER=emulated)");
  }
  if (device.has_index() && device.index() >= driver.device_count()) {
    throw TorchError(ErrorCode::kInvalidArgument, "a shard on " + device.str() + ": there are " +
                                                      std::to_string(driver.device_count()) + " devices, 0 the first");
  }
}

} // namespace

Session& Session::get() {
  static Session* session = new Session; // never destroyed
  return *session;
}

void Session::log(LogLevel level, const char* text) {
  if (level >= LogLevel::kWarning) {
    std::fprintf(stderr, "stillwake: %s\n", text);
  }
}

Driver& Session::driver(std::optional<DriverKind> kind) {
  value_or_throw(in_reach());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (driver_ == nullptr) {
    DriverOptions options;
    options.kind = kind;
    options.log.write = [](void*, LogLevel level, const char* text) { log(level, text); };
    driver_ = std::make_unique<Driver>(value_or_throw(Driver::open(options)));
  }
  if (kind && *kind != driver_->kind()) {
    throw TorchError(ErrorCode::kInvalidArgument, std::string("the driver of this process is open and is ") +
                                                      to_string(driver_->kind()) + "; it cannot become " +
                                                      to_string(*kind));
  }
  return *driver_;
}

Driver* Session::open_driver() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return driver_.get();
}

TensorShard& Session::shard(const ShardSpec& asked) {
  Driver& driver = this->driver();
  check_device(driver, asked.device);
  ShardSpec spec = asked;
  if (!spec.device.is_cpu() && !spec.device.has_index()) {
    spec.device = c10::impl::VirtualGuardImpl(spec.device.type()).getDevice(); // as everywhere in PyTorch
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& shard : shards_) {
    if (shard->spec().name == spec.name && shard->spec().device == spec.device) {
      if (const std::string difference = shard->spec().difference(spec); !difference.empty()) {
        throw TorchError(ErrorCode::kInvalidArgument,
                         "shard '" + spec.name + "' on " + spec.device.str() + " exists with " + difference);
      }
      return *shard;
    }
  }
  shards_.push_back(std::make_unique<TensorShard>(driver, spec));
  publish();
  return *shards_.back();
}

/// Called with the mutex held.
void Session::publish() {
  auto table = std::make_unique<Table>();
  for (const auto& shard : shards_) {
    table->push_back(shard.get());
  }
  table_.store(table.get(), std::memory_order_release);
  tables_.push_back(std::move(table));
}

TensorShard* Session::find(const void* address) const noexcept {
  if (const Table* table = table_.load(std::memory_order_acquire); table != nullptr && address != nullptr) {
    for (TensorShard* shard : *table) {
      if (shard->contains(address)) {
        return shard;
      }
    }
  }
  return nullptr;
}

std::vector<TensorShard*> Session::shards() const {
  const Table* table = table_.load(std::memory_order_acquire);
  return table == nullptr ? std::vector<TensorShard*>() : *table;
}

void Session::lose_in_child() {
  for (TensorShard* shard : shards()) {
    const std::string why = "stillwake: shard '" + shard->name() +
                            "' belongs to the process that this one was forked from, and its memory is not here. Start "
                            "the process with spawn, or hand it copies";
    shard->guard().refuse_in_child(why);
    shard->host_views().refuse_in_child(why);
  }
}

void Session::close(TensorShard& shard) {
  value_or_throw(in_reach());
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found =
      std::find_if(shards_.begin(), shards_.end(), [&](const auto& each) { return each.get() == &shard; });
  if (found == shards_.end()) {
    return;
  }
  HostViews& views = shard.host_views();
  views.hold("stillwake: shard '" + shard.name() + "' was closed, which ended this host view");
  try {
    shard.close();
  } catch (...) {
    views.settle([] { return true; });
    throw;
  }
  views.settle([] { return false; });
  closed_.push_back(std::move(*found));
  shards_.erase(found);
  publish();
}

} // namespace stillwake::pytorch
