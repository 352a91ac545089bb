// SPDX-License-Identifier: Apache-2.0
// An ExtentSource is what a Heap asks of the layer above: memory behind addresses, and whether a capture runs. The heap
// knows addresses only; how large an extent is, and whether there is memory, is decided by who implements this.
#pragma once

#include "allocator/base/base.h"
#include "allocator/heap/block_kind.h"

namespace stillwake {

class ExtentSource {
public:
  virtual ~ExtentSource() = default;

  /// Backs at least `at_least` pages from the front of `hole`, which has nothing behind it; may back more of it.
  /// Answers the range that is backed now: a prefix of `hole`. kOneHandle: exactly `at_least` pages, one handle.
  /// Called with no lock of the heap held, one call at a time; it may free blocks of the heap, never allocate or seal.
  /// Errors: kOutOfDeviceMemory, kLost; then nothing has changed.
  [[nodiscard]] virtual Result<PageRange> back(PageRange hole, Pages at_least, BlockKind kind) = 0;

  /// Whether a capture runs anywhere on the device: an event on the whole context would spoil it. Asked before one is
  /// recorded, by any thread that allocates or frees, with no lock of the heap held. False where it is not known.
  virtual bool a_capture_runs() { return false; }
};

} // namespace stillwake
