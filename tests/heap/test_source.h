// SPDX-License-Identifier: Apache-2.0
// A TestSource backs a heap's holes with real mappings of the emulated driver, one handle a page (one for all of a
// one-handle block), and says how often it was asked. Memory nobody backed faults when it is touched.
#pragma once

#include "allocator/heap/heap_layer.h"
#include "allocator/memory/memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

namespace stillwake {

class TestSource : public ExtentSource {
public:
  struct Call {
    PageRange hole;
    Pages at_least;
    BlockKind kind;
  };

  TestSource(Device& device, Reservation& reservation) : device_(device), reservation_(reservation) {}

  bool a_capture_runs() override { return a_capture_runs_now; }
  Result<PageRange> back(PageRange hole, Pages at_least, BlockKind kind) override {
    calls.push_back({hole, at_least, kind});
    if (on_back) {
      on_back();
    }
    if (fail) {
      return failure(ErrorCode::kOutOfDeviceMemory, "the test says there is no memory");
    }
    const bool one = kind == BlockKind::kOneHandle;
    const Pages count = one ? at_least : std::min(std::max(at_least, extent), hole.count);
    for (Pages page = hole.first; page < hole.first + count; page += one ? count : Pages(1)) {
      if (auto added = add(page, one ? count : Pages(1)); !added) {
        remove({hole.first, page - hole.first});
        return failure(added.error());
      }
    }
    if (auto allowed = reservation_.allow_access({hole.first, count}); !allowed) {
      remove({hole.first, count});
      return failure(allowed.error());
    }
    extent = std::min(extent + extent, most);
    return PageRange{hole.first, count};
  }

  /// Unmaps what lies wholly inside the range; answers the runs that are gone.
  std::vector<PageRange> remove(PageRange range) {
    std::vector<PageRange> gone;
    for (auto at = pieces_.lower_bound(range.first.count()); at != pieces_.end() && at->first < range.end().count();) {
      const PageRange piece{Pages(at->first), at->second.mapping.pages()};
      if (piece.end() > range.end()) {
        break;
      }
      if (!at->second.mapping.unmap() || !at->second.physical.release()) {
        std::abort();
      }
      at = pieces_.erase(at);
      if (!gone.empty() && gone.back().end() == piece.first) {
        gone.back().count += piece.count;
      } else {
        gone.push_back(piece);
      }
    }
    return gone;
  }
  /// The pages behind one handle at `page`, 0 where there is none.
  Pages handle_at(Pages page) const {
    const auto at = pieces_.find(page.count());
    return at == pieces_.end() ? Pages(0) : at->second.mapping.pages();
  }

  /// Pages that have memory behind them.
  Pages backed() const {
    Pages sum;
    for (const auto& [page, piece] : pieces_) {
      sum += piece.mapping.pages();
    }
    return sum;
  }
  bool is_backed(Pages page) const {
    auto at = pieces_.upper_bound(page.count());
    return at != pieces_.begin() && page < Pages(std::prev(at)->first) + std::prev(at)->second.mapping.pages();
  }

  std::vector<Call> calls;
  bool fail = false;
  bool a_capture_runs_now = false;
  std::function<void()> on_back;
  Pages extent{1}; ///< what the next call backs if it is enough; doubles
  Pages most{8};

private:
  Result<void> add(Pages page, Pages count) {
    auto physical = Physical::create(device_, count);
    if (!physical) {
      return failure(physical.error());
    }
    auto mapping = reservation_.map(page, *physical);
    if (!mapping) {
      return failure(mapping.error());
    }
    pieces_[page.count()] = {std::move(*physical), std::move(*mapping)};
    return {};
  }

  struct Piece {
    Physical physical;
    Mapping mapping;
  };
  Device& device_;
  Reservation& reservation_;
  std::map<std::uint64_t, Piece> pieces_;
};

} // namespace stillwake
