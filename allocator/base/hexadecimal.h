// SPDX-License-Identifier: Apache-2.0
// Addresses, and the handles of streams, as every sentence writes them: "0x7f2000000000".
#pragma once

#include "allocator/base/units.h"

#include <string>

namespace stillwake {

std::string hexadecimal(std::uint64_t value);
inline std::string hexadecimal(DeviceAddress address) { return hexadecimal(address.value()); }
/// A pointer or a stream.
inline std::string hexadecimal(const void* pointer) { return hexadecimal(DeviceAddress(pointer)); }

} // namespace stillwake
