// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/kernels.h"

#include <algorithm>
#include <cstring>

namespace stillwake::emulation {

Launch::Launch(Kernel kernel, const unsigned (&grid)[3], const unsigned (&block)[3], void* const* parameters)
    : kernel_(std::move(kernel)) {
  std::copy_n(grid, 3, grid_);
  std::copy_n(block, 3, block_);
  for (std::size_t i = 0; i < kernel_.parameter_sizes.size(); ++i) {
    const std::size_t size = kernel_.parameter_sizes[i];
    parameters_.emplace_back((size + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
    std::memcpy(parameters_.back().data(), parameters[i], size);
    pointers_.push_back(parameters_.back().data());
  }
}

void Launch::run() const {
  KernelLaunch launch{};
  std::copy_n(grid_, 3, launch.grid);
  std::copy_n(block_, 3, launch.block);
  launch.parameters = pointers_.data();
  kernel_.twin(launch);
}

} // namespace stillwake::emulation
