// SPDX-License-Identifier: Apache-2.0
// A PageSupply puts memory behind the missing pages of one shard: behind the first ones that a wake copies, and behind
// the rest while those are on the bus. The rest is created as a whole before any of it is mapped: creating costs no
// bus, but the device maps many times slower while it copies (docs/design/states-and-transactions.md).
#pragma once

#include "shard/shard_core.h"

#include <vector>

namespace stillwake {

class PageSupply {
public:
  /// `missing`: without memory, in address order. A piece is at most kLargestExtent; a block on one handle stays whole.
  PageSupply(ShardCore& core, const std::vector<MappedRun>& missing);

  /// Makes sure of memory behind `page`, and the rest of its piece: what is mapped goes to `extents`. On an error the
  /// piece has none.
  [[nodiscard]] Result<void> supply(Pages page, std::vector<Extent>& extents);
  /// The same of all pieces that have none yet.
  [[nodiscard]] Result<void> supply_rest(std::vector<Extent>& extents);
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
  /// Neighbouring pieces, to be taken and mapped as one.
  std::vector<MappedRun> rest() const;
  Result<std::vector<Physical>> take(const MappedRun& run);
  Result<void> place(const MappedRun& run, std::vector<Physical> handles, std::vector<Extent>& extents);

  ShardCore& core_;
  Clock& clock_;
  std::vector<Piece> pieces_; // by address
  std::size_t supplied_ = 0;
  Pages pages_;
  Duration creating_{0};
  Duration mapping_{0};
};

} // namespace stillwake
