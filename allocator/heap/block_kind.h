// SPDX-License-Identifier: Apache-2.0
// What a block asks of the memory behind it.
#pragma once

namespace stillwake {

enum class BlockKind {
  kShared,    ///< may share its pages with other blocks
  kOneHandle, ///< has its pages for itself, behind exactly one driver handle: for registration and export
};

} // namespace stillwake
