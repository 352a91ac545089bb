// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/modules.h"

#include "torch_plugin/library/torch_error.h"

#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <deque>

namespace stillwake::pytorch {
namespace {

/// Collects storages under their names; what is undefined is passed over.
class Collected {
public:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    if (!tensor.has_storage() || tensor.layout() != c10::kStrided) {
      throw TorchError(ErrorCode::kInvalidArgument,
                       "'" + name + "' has no storage that can sleep: only strided tensors do");
    }
    storages_.push_back({name, tensor.storage().getWeakStorageImpl().lock()});
  }
  template <class Tensors> void add_all(const std::string& name, const Tensors& tensors) {
    std::size_t index = 0;
    for (const at::Tensor& tensor : tensors) {
      add(name + "[" + std::to_string(index++) + "]", tensor);
    }
  }
  const std::vector<NamedStorage>& storages() const { return storages_; }

private:
  std::vector<NamedStorage> storages_;
};

using torch::optim::OptimizerParamState;

void add_moments(Collected& to, const std::string& name, const at::Tensor& average, const at::Tensor& squares,
                 const at::Tensor& greatest) {
  to.add(name + ".exp_avg", average);
  to.add(name + ".exp_avg_sq", squares);
  to.add(name + ".max_exp_avg_sq", greatest);
}

void add(Collected& to, const std::string& name, const torch::optim::LBFGSParamState& state) {
  to.add(name + ".d", state.d());
  to.add(name + ".H_diag", state.H_diag());
  to.add(name + ".prev_flat_grad", state.prev_flat_grad());
  to.add_all(name + ".old_dirs", state.old_dirs());
  to.add_all(name + ".old_stps", state.old_stps());
  to.add_all(name + ".ro", state.ro());
  if (state.al()) {
    to.add_all(name + ".al", *state.al());
  }
}

void add(Collected& to, const std::string& name, const OptimizerParamState& state) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
    add_moments(to, name, adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq());
  } else if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state)) {
    add_moments(to, name, adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq());
  } else if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
    to.add(name + ".momentum_buffer", sgd->momentum_buffer());
  } else if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropParamState*>(&state)) {
    to.add(name + ".square_avg", rmsprop->square_avg());
    to.add(name + ".momentum_buffer", rmsprop->momentum_buffer());
    to.add(name + ".grad_avg", rmsprop->grad_avg());
  } else if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state)) {
    to.add(name + ".sum", adagrad->sum());
  } else if (const auto* lbfgs = dynamic_cast<const torch::optim::LBFGSParamState*>(&state)) {
    add(to, name, *lbfgs);
  } else {
    throw TorchError(ErrorCode::kInvalidArgument,
                     "'" + name +
                         "' is of a class whose tensors Stillwake does not know; adopt its tensors as a vector");
  }
}

} // namespace

AdoptReport adopt(const torch::nn::Module& module, TensorShard& shard) {
  Collected collected;
  for (const auto& parameter : module.named_parameters()) {
    collected.add(parameter.key(), parameter.value());
  }
  for (const auto& buffer : module.named_buffers()) {
    collected.add(buffer.key(), buffer.value());
  }
  return adopt(collected.storages(), shard);
}

AdoptReport adopt(const torch::optim::Optimizer& optimizer, TensorShard& shard) {
  Collected collected;
  std::size_t index = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    if (state != nullptr) {
      add(collected, "state[" + std::to_string(index++) + "]", *state);
    }
  }
  return adopt(collected.storages(), shard);
}

AdoptReport adopt(const std::vector<at::Tensor>& tensors, TensorShard& shard) {
  Collected collected;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    collected.add("tensor " + std::to_string(index), tensors[index]);
  }
  return adopt(collected.storages(), shard);
}

} // namespace stillwake::pytorch
