// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/last_failure.h"

#include <utility>

namespace stillwake::pytorch {
namespace {

thread_local std::optional<Error> last; // NOLINT: the thread's own

} // namespace

void note_failure(const Error& error) noexcept { last = error; }

std::optional<Error> take_failure() { return std::exchange(last, std::nullopt); }

} // namespace stillwake::pytorch
