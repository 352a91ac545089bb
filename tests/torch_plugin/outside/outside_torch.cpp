// SPDX-License-Identifier: Apache-2.0
// A program from outside: tensors of LibTorch sleep and wake, one adopted and one made in a pool. Built against an
// installation.
#include <stillwake/stillwake_torch.h>

#include <ATen/ops/arange.h>

#include <cstdio>

namespace {

bool raises(const at::Tensor& tensor) {
  try {
    (void)tensor.const_data_ptr();
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

} // namespace

int main() {
  namespace sw = stillwake::pytorch;
  sw::ShardSpec spec;
  spec.name = "outside";
  sw::TensorShard& shard = sw::Session::get().shard(spec);
  const at::Tensor tensor = at::arange(1000, at::kDouble);
  sw::adopt({tensor}, shard);
  const at::Tensor pooled = [&shard] {
    const sw::Pool pool(shard);
    return at::arange(10, at::kDouble).view({2, 5});
  }();
  const void* before = tensor.const_data_ptr();
  sw::sleep({&shard});
  const bool raised = raises(tensor) && raises(pooled);
  const double kept = sw::host_view(tensor)[999].item<double>();
  sw::wake({&shard});
  const bool same = raised && kept == 999 && tensor.const_data_ptr() == before &&
                    tensor.sum().item<double>() == 499500 && pooled.sum().item<double>() == 45;
  std::printf("%s\n", same ? "same address, same bytes" : "different");
  return same ? 0 : 1;
}
