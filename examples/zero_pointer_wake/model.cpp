// SPDX-License-Identifier: Apache-2.0
#include "examples/zero_pointer_wake/model.h"

#include "examples/zero_pointer_wake/layers.h"
#include "examples/zero_pointer_wake/safetensors_header.h"

#include <utility>

namespace example {

using stillwake::Bytes;
using stillwake::Result;
using stillwake::Shard;

Result<Model> Model::create(stillwake::Driver& driver, stillwake::DeviceIndex device, const SafetensorsFile& file,
                            int copies) {
  Model model;
  std::vector<std::string> names;
  for (const Tensor& tensor : file.tensors()) {
    names.push_back(tensor.name);
  }
  std::vector<std::size_t> shard_of(names.size());
  for (const Layer& layer : layers_of(names)) {
    Bytes needed;
    for (const std::size_t index : layer.tensors) {
      shard_of[index] = model.shards_.size();
      needed += round_up(file.tensors()[index].size(), Bytes(512)) * static_cast<std::uint64_t>(copies);
    }
    stillwake::ShardOptions options;
    options.name = printable_name(layer.name);
    options.device = device;
    // A layer never grows: it need not reserve as many addresses as the device has memory, which is the default. Twice
    // its size leaves room for what lies between blocks.
    options.addresses = round_up(needed * 2 + stillwake::kGiB, stillwake::kPageBytes);
    auto shard = Shard::create(driver, std::move(options));
    STILLWAKE_TRY(shard);
    model.shards_.push_back(std::make_unique<Shard>(*std::move(shard)));
  }
  for (int copy = 0; copy < copies; ++copy) {
    for (std::size_t index = 0; index < names.size(); ++index) {
      const Tensor& tensor = file.tensors()[index];
      PlacedTensor placed{&tensor, shard_of[index], nullptr};
      if (tensor.size() != Bytes(0)) {
        auto block = model.shards_[placed.shard]->allocate(tensor.size());
        STILLWAKE_TRY(block);
        placed.pointer = static_cast<std::byte*>(*block);
        model.pieces_.push_back({placed.pointer, file.bytes(tensor), tensor.size()});
        model.size_ += tensor.size();
      }
      model.tensors_.push_back(placed);
    }
  }
  return model;
}

stillwake::ShardSet Model::set() const {
  stillwake::ShardSet set;
  for (const auto& shard : shards_) {
    set.push_back(shard.get());
  }
  return set;
}

} // namespace example
