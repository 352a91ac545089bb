// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/pinned_buffer.h"

#include <utility>

namespace stillwake {

Result<PinnedBuffer> PinnedBuffer::create(Device& device, Bytes size) {
  STILLWAKE_CHECK_LT(Bytes(0), size);
  constexpr Bytes kStep = kKiB * 4;
  auto pages = HostPages::reserve(device, round_up(size, kStep), kStep);
  if (!pages) {
    return failure(std::move(pages).error());
  }
  STILLWAKE_TRY(pages->open(Bytes(0), pages->size()));
  STILLWAKE_TRY(pages->populate(Bytes(0), pages->size()));
  STILLWAKE_TRY(pages->pin(Bytes(0), pages->size()));
  return PinnedBuffer(std::move(*pages));
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(pages_, other.pages_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (!pages_ || driver_is_out_of_reach()) {
    return;
  }
  if (!try_twice(pages_.device().table(), [this] { return pages_.unpin(Bytes(0), pages_.size()); })) {
    pages_.leak();
  }
}

} // namespace stillwake
