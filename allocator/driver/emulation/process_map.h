// SPDX-License-Identifier: Apache-2.0
// What the system says about addresses of this process. Asking touches no page: a registration must not change what is
// resident, and a byte read or written as a probe would.
#pragma once

#include <cstdint>

namespace stillwake::emulation {

/// Whether every byte of [first, first + size) is mapped, readable and writable.
bool is_readable_and_writable(std::uint64_t first, std::uint64_t size);

} // namespace stillwake::emulation
