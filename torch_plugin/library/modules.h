// SPDX-License-Identifier: Apache-2.0
// adopt for what LibTorch programs have: modules, optimizers and tensors.
#pragma once

#include "adopt.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch {
namespace nn {
class Module;
}
namespace optim {
class Optimizer;
}
} // namespace torch

namespace stillwake::pytorch {

/// Every parameter and buffer, those of submodules too. Throws as adopt of storages.
AdoptReport adopt(const torch::nn::Module& module, TensorShard& shard);
/// The tensors of an optimizer's state, as far as there is any: state appears at the first step, so adopt after it.
/// Adagrad, Adam, AdamW, LBFGS, RMSprop and SGD; kInvalidArgument for state of another class, whose tensors the program
/// adopts itself. The parameters belong to the module.
AdoptReport adopt(const torch::optim::Optimizer& optimizer, TensorShard& shard);
/// Named "tensor 0", "tensor 1". kInvalidArgument for one without a storage (sparse, undefined).
AdoptReport adopt(const std::vector<at::Tensor>& tensors, TensorShard& shard);

} // namespace stillwake::pytorch
