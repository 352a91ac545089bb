// SPDX-License-Identifier: Apache-2.0
// The driver's names of its errors, for those that every CUDA 12 header has.
#pragma once

#include <cuda.h>

namespace stillwake::emulation {

/// Null for a number that is no error.
const char* error_name(CUresult error);

} // namespace stillwake::emulation
