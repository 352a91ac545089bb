// SPDX-License-Identifier: Apache-2.0
// A Model is a file's tensors on the device: a shard for each layer, a block for each tensor of each copy.
#pragma once

#include "examples/content.h"
#include "examples/zero_pointer_wake/safetensors.h"

#include <memory>
#include <vector>

namespace example {

struct PlacedTensor {
  const Tensor* tensor = nullptr;
  std::size_t shard = 0;
  std::byte* pointer = nullptr; ///< null for a tensor without bytes
};

class Model {
public:
  /// Reserves the shards and allocates every block; writes nothing yet. The file and the driver outlive the model.
  [[nodiscard]] static stillwake::Result<Model> create(stillwake::Driver& driver, stillwake::DeviceIndex device,
                                                       const SafetensorsFile& file, int copies);

  /// One for each tensor of each copy; the first copy's come first, in the order of the file.
  const std::vector<PlacedTensor>& tensors() const { return tensors_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  const stillwake::Shard& shard(std::size_t index) const { return *shards_[index]; }
  stillwake::ShardSet set() const;
  stillwake::Bytes size() const { return size_; }

private:
  // Shards move in memory when a vector grows, and a set holds their addresses.
  std::vector<std::unique_ptr<stillwake::Shard>> shards_;
  std::vector<PlacedTensor> tensors_;
  std::vector<Piece> pieces_;
  stillwake::Bytes size_;
};

} // namespace example
