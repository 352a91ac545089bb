// SPDX-License-Identifier: Apache-2.0
// Adopting moves what already exists into a shard: once, storage by storage, identity kept. A Tensor, its views and
// everything that aliases it follow, because they share the storage object, whose bytes are what moves.
#pragma once

#include "tensor_shard.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace stillwake::pytorch {

struct NamedStorage {
  std::string name; ///< for messages: "layers.0.weight"
  c10::intrusive_ptr<c10::StorageImpl> storage;
};

struct AdoptReport {
  std::uint64_t moved = 0;    ///< storages copied into the shard
  std::uint64_t taken_in = 0; ///< that lay in it already
  std::uint64_t empty = 0;    ///< of no bytes; a later resize_ allocates in the shard
  Bytes bytes;                ///< of those that moved

  /// "adopted into 'params': 12 storages of 49152 bytes moved, 4 were inside, 1 empty".
  std::string line(const std::string& shard) const;
};

/// Takes every storage in (each once, however often it is named). The caller lets no other thread use them meanwhile;
/// work queued on the device is waited for. Old memory is given back to PyTorch storage by storage. Before anything
/// moves, throws kInvalidArgument, naming the storage, for one of another shard or device, and for memory that PyTorch
/// did not allocate (from_blob, numpy, shared memory, another process); kAsleep and kBusy as Shard::allocate. When a
/// later storage finds no memory (c10::OutOfMemoryError) those before it are in the shard, the others are where they
/// were: each wholly, and the message says which.
AdoptReport adopt(const std::vector<NamedStorage>& storages, TensorShard& shard);

} // namespace stillwake::pytorch
