// SPDX-License-Identifier: Apache-2.0
// A PinnedBuffer is a small pinned piece of host memory, zeroed, in steps of 4 KiB: for digests and verdicts. It is not
// counted in the budget: it is taken at open, so that a full machine cannot stop a sleep.
#pragma once

#include "allocator/host/host_pages.h"

#include <type_traits>

namespace stillwake {

class PinnedBuffer {
public:
  /// At least `size` bytes (at least one), for all devices. Errors: kOutOfHostMemory, kLost.
  [[nodiscard]] static Result<PinnedBuffer> create(Device& device, Bytes size);
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&&) noexcept = default;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  explicit operator bool() const { return static_cast<bool>(pages_); }
  std::byte* data() const { return pages_.base(); }
  /// What was asked for, rounded up to 4 KiB.
  Bytes size() const { return pages_ ? pages_.size() : Bytes(0); }

private:
  explicit PinnedBuffer(HostPages pages) : pages_(std::move(pages)) {}

  HostPages pages_; // pinned whole
};

static_assert(std::is_nothrow_move_constructible_v<PinnedBuffer> && !std::is_copy_constructible_v<PinnedBuffer>);

} // namespace stillwake
