// SPDX-License-Identifier: Apache-2.0
// A HandlePool is the physical memory that a swap has in hand: handles that left one set and have not reached the
// other. No neighbour can take what is in it.
#pragma once

#include "allocator/memory/memory.h"

#include <vector>

namespace stillwake {

class HandlePool {
public:
  void put(Physical handle) {
    pages_ += handle.pages();
    handles_.push_back(std::move(handle));
  }
  bool empty() const { return handles_.empty(); }
  Pages pages() const { return pages_; }

  /// The largest handle of at most `most` pages; an empty one when there is none.
  Physical take_at_most(Pages most);
  /// A handle of exactly so many pages, or an empty one.
  Physical take_exactly(Pages pages);
  /// Any handle, the smallest one; the pool is not empty.
  Physical take_smallest();

private:
  Physical take(std::size_t index);

  std::vector<Physical> handles_;
  Pages pages_;
};

} // namespace stillwake
