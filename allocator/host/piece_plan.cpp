// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/piece_plan.h"

#include <algorithm>

namespace stillwake {
namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

struct PieceNow {
  PageRange range;
  Pages wanted; // pages of wanted ranges that lie wholly inside
  bool dropped = false;
  Pages unwanted() const { return range.count - wanted; }
};

void check_order(std::span<const PageRange> ranges) {
  Pages end;
  for (PageRange range : ranges) {
    STILLWAKE_CHECK_LE(end, range.first);
    STILLWAKE_CHECK_LT(range.first, range.end()); // neither empty nor around the end of all numbers
    end = range.end();
  }
}

/// For each wanted range the piece that contains it. Pieces that one overlaps without being inside are dropped.
std::vector<std::size_t> find_homes(std::vector<PieceNow>& pieces, std::span<const PageRange> wanted) {
  std::vector<std::size_t> homes(wanted.size(), kNone);
  std::size_t first = 0;
  for (std::size_t w = 0; w < wanted.size(); ++w) {
    while (first < pieces.size() && pieces[first].range.end() <= wanted[w].first) {
      ++first;
    }
    if (first < pieces.size() && pieces[first].range.first <= wanted[w].first &&
        wanted[w].end() <= pieces[first].range.end()) {
      homes[w] = first;
      pieces[first].wanted += wanted[w].count;
      continue;
    }
    for (std::size_t p = first; p < pieces.size() && pieces[p].range.first < wanted[w].end(); ++p) {
      pieces[p].dropped = true;
    }
  }
  return homes;
}

void drop_beyond_slack(std::vector<PieceNow>& pieces, Pages slack) {
  Pages unwanted;
  std::vector<PieceNow*> candidates;
  for (PieceNow& piece : pieces) {
    if (!piece.dropped && Pages(0) < piece.unwanted()) {
      unwanted += piece.unwanted();
      candidates.push_back(&piece);
    }
  }
  if (unwanted <= slack) {
    return;
  }
  // Pieces that nobody wants cost nothing to drop; a piece that is cut has to be pinned anew.
  std::stable_sort(candidates.begin(), candidates.end(), [](const PieceNow* a, const PieceNow* b) {
    const bool a_empty = a->wanted == Pages(0);
    const bool b_empty = b->wanted == Pages(0);
    return a_empty != b_empty ? a_empty : b->unwanted() < a->unwanted();
  });
  for (PieceNow* piece : candidates) {
    if (piece->wanted != Pages(0) && unwanted <= slack) {
      return;
    }
    piece->dropped = true;
    unwanted -= piece->unwanted();
  }
}

/// What of `pieces` lies in no range of `added`.
std::vector<PageRange> subtract(std::span<const PageRange> pieces, std::span<const PageRange> added) {
  std::vector<PageRange> rest;
  std::size_t next = 0;
  for (PageRange piece : pieces) {
    Pages at = piece.first;
    while (next < added.size() && added[next].end() <= at) {
      ++next;
    }
    for (std::size_t a = next; a < added.size() && added[a].first < piece.end(); ++a) {
      if (at < added[a].first) {
        rest.push_back({at, added[a].first - at});
      }
      at = std::min(added[a].end(), piece.end());
    }
    if (at < piece.end()) {
      rest.push_back({at, piece.end() - at});
    }
  }
  return rest;
}

} // namespace

Pages PiecePlan::fresh() const {
  Pages punched;
  for (PageRange pages : punch) {
    punched += pages.count;
  }
  return pages_after + punched - pages_before; // what is dropped and not punched is handed over
}

PiecePlan plan_pieces(std::span<const PageRange> pieces, std::span<const PageRange> wanted, Pages slack) {
  check_order(pieces);
  check_order(wanted);
  std::vector<PieceNow> now;
  for (PageRange piece : pieces) {
    now.push_back({piece, Pages(0)});
  }
  const std::vector<std::size_t> homes = find_homes(now, wanted);
  drop_beyond_slack(now, slack);

  PiecePlan plan;
  for (const PieceNow& piece : now) {
    plan.pages_before += piece.range.count;
    if (piece.dropped) {
      plan.drop.push_back(piece.range);
    } else {
      plan.pages_after += piece.range.count;
    }
  }
  for (std::size_t w = 0; w < wanted.size(); ++w) {
    if (homes[w] == kNone || now[homes[w]].dropped) {
      plan.add.push_back(wanted[w]);
      plan.pages_after += wanted[w].count;
    }
  }
  plan.punch = subtract(plan.drop, plan.add);
  return plan;
}

} // namespace stillwake
