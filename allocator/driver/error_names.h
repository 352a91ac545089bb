// SPDX-License-Identifier: Apache-2.0
// The names of the driver's errors as cuda.h spells them: for reading a fault's error, and for naming one when the
// driver cannot be asked.
#pragma once

#include <cuda.h>

#include <optional>
#include <string_view>

namespace stillwake {

/// "CUDA_ERROR_OUT_OF_MEMORY" for instance, or null for a number without a name here.
const char* error_name(CUresult error);
/// The error of that name. CUDA_SUCCESS is no error.
std::optional<CUresult> error_by_name(std::string_view name);

/// Whether the error is sticky: the context, or the process's use of the device, is dead from here on.
bool is_sticky(CUresult error);

} // namespace stillwake
