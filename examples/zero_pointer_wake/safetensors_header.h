// SPDX-License-Identifier: Apache-2.0
// Reads the JSON header of a .safetensors file: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}},
// and "__metadata__", an object of strings, which is checked and passed over.
#pragma once

#include "examples/zero_pointer_wake/safetensors.h"

#include <optional>
#include <string_view>

namespace example {

/// The tensors as the header lists them, each with a known dtype and a size that is shape x dtype. How they lie in the
/// file is the caller's to check. Errors: kInvalidArgument with one sentence that does not name the file.
[[nodiscard]] stillwake::Result<std::vector<Tensor>> read_header(std::string_view text);

/// Bits of one element of a dtype; unset for one that is not known.
std::optional<std::uint64_t> dtype_bits(std::string_view dtype);

/// A name out of a file, fit for a terminal: control characters replaced, at most 80 characters.
std::string printable_name(std::string_view name);

} // namespace example
