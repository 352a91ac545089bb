// SPDX-License-Identifier: Apache-2.0
// The Session is the one process-wide instance that PyTorch's allocator functions need: the driver, and every shard by
// name and device. It is never destroyed: tensors may outlive everything, the interpreter's end included.
#pragma once

#include "../../shard/stillwake.h"
#include "tensor_shard.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace stillwake::pytorch {

class Session {
public:
  static Session& get();

  /// Warnings and errors go to stderr, a line each. (Python's warnings may not be raised from a deleter.)
  static void log(LogLevel level, const char* text);

  /// The driver, opened at the first call. `kind` unset means the one that is open, else what STILLWAKE_DRIVER says.
  /// Throws what Driver::open answers; kInvalidArgument for another kind than the one that is open; kLost in a child
  /// made by fork of a process that opened one.
  Driver& driver(std::optional<DriverKind> kind = std::nullopt);
  /// The driver if it is open, else null; opens nothing.
  Driver* open_driver() const;

  /// The shard of that name and device, made at the first call. Throws kInvalidArgument when it exists with other
  /// options, or when the device does not fit the driver; else what Shard::create answers.
  TensorShard& shard(const ShardSpec& spec);
  /// The shard that the address lies in, or null. Any thread, any time; takes no lock.
  TensorShard* find(const void* address) const noexcept;
  /// Every shard, in the order in which they were made.
  std::vector<TensorShard*> shards() const;
  /// In a child made by fork: every adopted storage and host view raises for ever, instead of ending the process.
  void lose_in_child();
  /// Ends a shard that has no live block: its addresses and its name are free again. Throws kBusy, naming the blocks
  /// and their bytes, and changes nothing when there are some.
  void close(TensorShard& shard);

private:
  /// What `find` reads. A new one is made at every change; old ones stay, because a reader may be in one.
  using Table = std::vector<TensorShard*>;

  Session() = default;
  void publish();

  mutable std::mutex mutex_;
  std::unique_ptr<Driver> driver_;                   // guarded by mutex_
  std::vector<std::unique_ptr<TensorShard>> shards_; // guarded by mutex_
  std::vector<std::unique_ptr<const Table>> tables_; // guarded by mutex_
  std::vector<std::unique_ptr<TensorShard>> closed_; // guarded by mutex_; their core is gone, a reader may still look
  std::atomic<const Table*> table_{nullptr};
};

} // namespace stillwake::pytorch
