// SPDX-License-Identifier: Apache-2.0
// A PiecePlan says how the pinned pieces of a mirror become those that are wanted: which stay untouched, which are
// unpinned, which are pinned anew, and which pages go back to the system in between. Pure: it moves nothing.
#pragma once

#include "allocator/base/base.h"

#include <span>
#include <vector>

namespace stillwake {

/// All ranges in address order.
struct PiecePlan {
  std::vector<PageRange> drop;  ///< pieces of now to unpin; the others stay as they are
  std::vector<PageRange> punch; ///< pages of dropped pieces that no added piece takes over
  std::vector<PageRange> add;   ///< pieces to pin; pages that a dropped piece held keep their content
  Pages pages_before;
  Pages pages_after;

  /// Pages of `add` that have no memory once `punch` is carried out.
  Pages fresh() const;
};

/// `pieces` and `wanted` are in address order, disjoint and without empty ranges; two of them may touch.
/// A piece that contains a wanted range serves it as it is. Wanted ranges that no piece contains become pieces of
/// exactly their size, and every piece that they overlap is dropped. When more than `slack` pages are left that nobody
/// wants, all pieces without a wanted page are dropped; when that is not enough, the pieces with most unwanted pages
/// are cut down to what is wanted of them.
PiecePlan plan_pieces(std::span<const PageRange> pieces, std::span<const PageRange> wanted, Pages slack);

} // namespace stillwake
