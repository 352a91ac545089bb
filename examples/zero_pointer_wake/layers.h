// SPDX-License-Identifier: Apache-2.0
// Which tensors of a model belong to one layer, told from their names alone.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace example {

struct Layer {
  std::string name;
  std::vector<std::size_t> tensors; ///< indices into the names
};

/// "encoder.layer.3.attention.weight" belongs to "encoder.layer.3": up to the first number. A name without a number
/// belongs to its first part ("pooler"), or to its first two where the first also begins numbered ones
/// ("model.embed_tokens" beside "model.layers.0"). A name without a dot or
/// with nothing before it, and every layer after the 256th, belongs to "other". Layers come in the order of their first
/// tensor.
std::vector<Layer> layers_of(const std::vector<std::string>& names);

} // namespace example
