// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/cuda_side.h"

#include <atomic>

namespace stillwake::pytorch {
namespace {

std::atomic<CudaSide*> registered{nullptr};

} // namespace

void register_cuda_side(CudaSide& side) noexcept { registered.store(&side, std::memory_order_release); }

CudaSide* cuda_side() noexcept { return registered.load(std::memory_order_acquire); }

} // namespace stillwake::pytorch
