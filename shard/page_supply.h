// SPDX-License-Identifier: Apache-2.0
// A PageSupply puts memory behind the missing pages of one shard piece by piece, when the copies of a wake come to
// them: so the bus waits for the memory of the first piece only.
#pragma once

#include "shard/shard_core.h"

#include <vector>

namespace stillwake {

class PageSupply {
public:
  /// `missing`: without memory, in address order. A piece is at most kLargestExtent; a block on one handle stays whole.
  PageSupply(ShardCore& core, const std::vector<MappedRun>& missing);

  /// Makes sure of memory behind `page`: what is mapped for it goes to `extents`. On an error the piece has none.
  [[nodiscard]] Result<void> supply(Pages page, std::vector<Extent>& extents);
  /// Whether every missing page has been supplied.
  bool is_complete() const { return supplied_ == pieces_.size(); }
  Pages pages() const { return pages_; } ///< supplied
  Duration creating() const { return creating_; }
  Duration mapping() const { return mapping_; }

private:
  struct Piece {
    MappedRun run;
    bool is_there = false;
  };
  ShardCore& core_;
  std::vector<Piece> pieces_; // by address
  std::size_t supplied_ = 0;
  Pages pages_;
  Duration creating_{0};
  Duration mapping_{0};
};

} // namespace stillwake
