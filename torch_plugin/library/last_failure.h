// SPDX-License-Identifier: Apache-2.0
// The last failure of an allocation, by thread. PyTorch turns what an allocator throws into errors of its own; whoever
// opened the pool asks here what it really was.
#pragma once

#include "allocator/base/error.h"

#include <optional>

namespace stillwake::pytorch {

void note_failure(const Error& error) noexcept;
/// The thread's last failure since it was last taken.
std::optional<Error> take_failure();

} // namespace stillwake::pytorch
