// SPDX-License-Identifier: Apache-2.0
// The CPU twins of the device code: the same bits from the same source, for the emulated driver and for tests.
#pragma once

#include "allocator/driver/emulation/emulation.h"
#include "allocator/transfer/page_digest.h"

#include <cstdint>

namespace stillwake {

/// The digest of the 2 MiB at `page` (aligned to 4 bytes), computed here and now.
PageDigest digest_of_page(const void* page, std::uint64_t seed);

/// Makes the twins known to an emulated driver. Again is harmless.
void register_kernel_twins(Emulation& emulation);

} // namespace stillwake
