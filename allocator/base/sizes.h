// SPDX-License-Identifier: Apache-2.0
// Sizes as people write them: "8GiB", "512MiB", "4096"; and how we write them back.
#pragma once

#include "allocator/base/result.h"
#include "allocator/base/units.h"

#include <string>
#include <string_view>

namespace stillwake {

/// Reads "8GiB", "512 MiB", "64KiB", "1.5GiB" or a plain count of bytes. Anything else is kInvalidArgument.
[[nodiscard]] Result<Bytes> parse_bytes(std::string_view text);

/// "20.00 GiB", "64.0 MiB", "512 B": for sentences, three or four digits.
std::string readable(Bytes size);
/// "20.00 GiB (21474836480 bytes)": for sentences that compare two amounts, which rounded may look equal.
std::string exact(Bytes size);

} // namespace stillwake
