// SPDX-License-Identifier: Apache-2.0
// Sizes as people write them: "8GiB", "512MiB", "4096"; how we write them back, and what is left of them.
#pragma once

#include "allocator/base/result.h"
#include "allocator/base/units.h"

#include <string>
#include <string_view>

namespace stillwake {

/// Reads "8GiB", "512 MiB", "64KiB", "1.5GiB" or a plain count of bytes. Anything else is kInvalidArgument.
[[nodiscard]] Result<Bytes> parse_bytes(std::string_view text);

/// What `used` leaves of `whole`; nothing when it is more than that.
inline Bytes left_of(Bytes whole, Bytes used) { return used < whole ? whole - used : Bytes(0); }

/// "20.00 GiB", "64.0 MiB", "512 B": for sentences, three or four digits.
std::string readable(Bytes size);
/// "20.00 GiB (21474836480 bytes)": for sentences that compare two amounts, which rounded may look equal.
std::string exact(Bytes size);
/// "needs <needed> more, free are <free> of <limit> (<whose>)": the sentence of every limit that is kept here.
std::string shortage(Bytes needed, Bytes free, Bytes limit, const std::string& whose);

} // namespace stillwake
