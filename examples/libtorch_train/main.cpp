// SPDX-License-Identifier: Apache-2.0
// libtorch_train: a C++ training program without Python whose parameters and optimizer state sleep between steps. A
// control run that never sleeps goes beside it; at the end the losses must be equal bit for bit and no pointer changed.
#include "torch_plugin/library/stillwake_torch.h"

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace sw = stillwake::pytorch;

namespace {

constexpr int kSteps = 6;
constexpr std::int64_t kWidth = 512;

/// Two layers that learn to add up their input.
struct Network : torch::nn::Module {
  Network() {
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    last = register_module("last", torch::nn::Linear(kWidth, 1));
  }
  at::Tensor forward(const at::Tensor& input) { return last(torch::nn::functional::relu(first(input))); }

  torch::nn::Linear first{nullptr};
  torch::nn::Linear last{nullptr};
};

using Addresses = std::map<std::string, const void*>;

Addresses addresses_of(const Network& network) {
  Addresses found;
  for (const auto& parameter : network.named_parameters()) {
    found[parameter.key()] = parameter.value().const_data_ptr();
  }
  return found;
}

double step(Network& network, torch::optim::AdamW& optimizer, int number, at::Device device) {
  torch::manual_seed(number);
  const at::Tensor input = torch::randn({64, kWidth}).to(device);
  optimizer.zero_grad();
  const at::Tensor loss = (network.forward(input) - input.sum(1, true)).square().mean();
  loss.backward();
  optimizer.step();
  optimizer.zero_grad();
  return loss.item<double>();
}

struct Run {
  std::vector<double> losses;
  int pointers_changed = 0;
  std::size_t pointers = 0;
};

Run train(at::Device device, bool with_sleep) {
  torch::manual_seed(0);
  Network network;
  network.to(device);
  torch::optim::AdamW optimizer(network.parameters(), torch::optim::AdamWOptions(1e-3));
  Run run;
  run.losses.push_back(step(network, optimizer, 0, device)); // the optimizer's state appears here
  if (!with_sleep) {
    for (int number = 1; number < kSteps; ++number) {
      run.losses.push_back(step(network, optimizer, number, device));
    }
    return run;
  }

  sw::ShardSpec spec;
  spec.device = device;
  spec.name = "params";
  sw::TensorShard& params = sw::Session::get().shard(spec);
  spec.name = "optim";
  sw::TensorShard& optim = sw::Session::get().shard(spec);
  std::printf("%s\n", sw::adopt(network, params).line("params").c_str());
  std::printf("%s\n", sw::adopt(optimizer, optim).line("optim").c_str());
  const Addresses before = addresses_of(network);
  run.pointers = before.size();
  for (int number = 1; number < kSteps; ++number) {
    const auto slept = sw::sleep({&params, &optim});
    if (number == 1) {
      const at::Tensor weight = sw::host_view(network.first->weight);
      std::printf("%s\nasleep, the first weight is read from the host: %.6f\n", slept.line().c_str(),
                  weight[0][0].item<double>());
    }
    const auto woken = sw::wake({&params, &optim});
    if (number == 1) {
      std::printf("%s\n", woken.line().c_str());
    }
    for (const auto& [name, address] : addresses_of(network)) {
      run.pointers_changed += before.at(name) != address ? 1 : 0;
    }
    run.losses.push_back(step(network, optimizer, number, device));
  }
  return run;
}

int run() {
  stillwake::Driver& driver = sw::Session::get().driver();
  std::printf("%s\n", driver.describe().c_str());
  const at::Device device =
      driver.kind() == stillwake::DriverKind::kEmulated ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
  const Run control = train(device, false);
  const Run slept = train(device, true);
  int different = 0;
  for (int number = 0; number < kSteps; ++number) {
    const auto at = static_cast<std::size_t>(number);
    different += control.losses[at] != slept.losses[at] ? 1 : 0;
    std::printf("step %d: loss %.9g, control run %.9g\n", number, slept.losses[at], control.losses[at]);
  }
  std::printf("pointers changed: %d of %zu\nlosses different from the control run: %d of %d\n", slept.pointers_changed,
              slept.pointers, different, kSteps);
  return slept.pointers_changed == 0 && different == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

} // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "libtorch_train: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
