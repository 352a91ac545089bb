// SPDX-License-Identifier: Apache-2.0
// A PageRanges joins pages into the ranges that travel as one call: neighbours on the device and on the host, of one
// pinned piece, 256 MiB at most.
#pragma once

#include "allocator/base/base.h"

#include <cstddef>
#include <utility>

namespace stillwake {

/// Neighbouring pages. `host` is null for pages that have no host side (they are cleared).
struct TransferRange {
  DeviceAddress device;
  std::byte* host = nullptr;
  std::uint32_t piece = 0;
  std::size_t first_task = 0; ///< index of the task of its first page
  Pages pages;

  Bytes bytes() const { return Bytes(pages); }
};

/// A larger range gains nothing on the bus, and a smaller one ends sooner.
constexpr Pages kLargestRange{128};

/// `Send` is Result<void>(const TransferRange&), called for each range once it is known to be complete.
template <class Send> class PageRanges {
public:
  explicit PageRanges(Send send) : send_(std::move(send)) {}

  /// In the order of the tasks.
  [[nodiscard]] Result<void> add(DeviceAddress device, std::byte* host, std::uint32_t piece, std::size_t task) {
    if (!follows(device, host, piece)) {
      STILLWAKE_TRY(flush());
      range_ = {device, host, piece, task, Pages(0)};
    }
    ++range_.pages;
    return {};
  }
  /// Sends what is left.
  [[nodiscard]] Result<void> flush() {
    if (range_.pages == Pages(0)) {
      return {};
    }
    const TransferRange range = std::exchange(range_, {});
    return send_(range);
  }

private:
  bool follows(DeviceAddress device, const std::byte* host, std::uint32_t piece) const {
    const bool next_host = host == nullptr ? range_.host == nullptr
                                           : range_.host != nullptr && host == range_.host + range_.bytes().size();
    return range_.pages != Pages(0) && range_.pages < kLargestRange && piece == range_.piece &&
           device == range_.device + range_.bytes() && next_host;
  }

  Send send_;
  TransferRange range_;
};

} // namespace stillwake
