// SPDX-License-Identifier: Apache-2.0
// The device code as the driver loads it: page_kernels.ptx, made part of the program by scripts/embed_ptx.py.
#pragma once

namespace stillwake {

/// Ends with a zero byte.
extern const char kPageKernelsPtx[];

} // namespace stillwake
