// SPDX-License-Identifier: Apache-2.0
// The plain model of a mirror: for every page the word that was written to it last, for pages that are pinned. It knows
// what an arrange must leave, whatever pieces the mirror makes of it.
#pragma once

#include "allocator/host/host.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stillwake {

enum class MirrorAction { kArrange, kClear, kWrite, kFail, kBudget, kThreads };

/// One step. What `a` and `b` mean depends on the action; `describe` says it.
struct MirrorOperation {
  MirrorAction action = MirrorAction::kClear;
  int mirror = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;

  /// "{MirrorAction::kArrange, 1, 1234, 3} /* wants [0+4 9+1], slack 3 */": to be pasted into a program.
  std::string describe() const;
};

constexpr std::uint64_t kMirrorPages = 24;

/// The ranges that an arrange with this seed wants: in order, disjoint, some touching.
std::vector<PageRange> wanted_ranges(std::uint64_t seed);

class MirrorModel {
public:
  /// What a page holds: its word; unset where it is not pinned.
  std::optional<std::uint64_t> word(Pages page) const;
  void write(Pages page, std::uint64_t word) { words_[page.count()] = word; }

  /// Takes over which pages are pinned now. Pages that are new have zeros. Empty when all is as an arrange that
  /// `succeeded` or failed may leave it, else what is wrong.
  std::string follow(const std::vector<PageRange>& pieces, const std::vector<PageRange>& wanted, Pages slack,
                     bool succeeded);
  std::uint64_t pages() const { return words_.size(); }

private:
  std::map<std::uint64_t, std::uint64_t> words_;
};

} // namespace stillwake
