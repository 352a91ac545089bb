// SPDX-License-Identifier: Apache-2.0
// The kernels that an emulation knows, each by its name: what a module would have loaded.
#pragma once

#include "allocator/driver/emulation/emulation.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace stillwake::emulation {

struct Kernel {
  KernelTwin twin = nullptr;
  std::vector<std::size_t> parameter_sizes;
};

/// One launch with its parameters copied, as the driver copies them before cuLaunchKernel returns.
class Launch {
public:
  Launch(Kernel kernel, const unsigned (&grid)[3], const unsigned (&block)[3], void* const* parameters);
  Launch(const Launch&) = delete; // the pointers point inside
  Launch& operator=(const Launch&) = delete;

  /// Owns nothing while it runs: a fault leaves it in the middle.
  void run() const;

private:
  Kernel kernel_;
  unsigned grid_[3];
  unsigned block_[3];
  std::vector<std::vector<std::max_align_t>> parameters_;
  std::vector<void*> pointers_;
};

} // namespace stillwake::emulation
