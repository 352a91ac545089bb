// SPDX-License-Identifier: Apache-2.0
// A program from outside: one tensor of LibTorch sleeps and wakes. Built against an installation.
#include <stillwake/torch_plugin/library/stillwake_torch.h>

#include <ATen/ops/arange.h>

#include <cstdio>

int main() {
  namespace sw = stillwake::pytorch;
  sw::ShardSpec spec;
  spec.name = "outside";
  sw::TensorShard& shard = sw::Session::get().shard(spec);
  const at::Tensor tensor = at::arange(1000, at::kDouble);
  sw::adopt({tensor}, shard);
  const void* before = tensor.const_data_ptr();
  sw::sleep({&shard});
  bool raised = false;
  try {
    (void)tensor.const_data_ptr();
  } catch (const c10::Error&) {
    raised = true;
  }
  const double kept = sw::host_view(tensor)[999].item<double>();
  sw::wake({&shard});
  const bool same = raised && kept == 999 && tensor.const_data_ptr() == before && tensor.sum().item<double>() == 499500;
  std::printf("%s\n", same ? "same address, same bytes" : "different");
  return same ? 0 : 1;
}
