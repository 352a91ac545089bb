// SPDX-License-Identifier: Apache-2.0
#include "tests/model/mirror_model.h"

#include <algorithm>
#include <random>

namespace stillwake {
namespace {

std::string to_string(const std::vector<PageRange>& ranges) {
  std::string text = "[";
  for (PageRange range : ranges) {
    text +=
        (text.size() > 1 ? " " : "") + std::to_string(range.first.count()) + "+" + std::to_string(range.count.count());
  }
  return text + "]";
}

} // namespace

std::string MirrorOperation::describe() const {
  static const char* const kNames[] = {"kArrange", "kClear", "kWrite", "kFail", "kBudget", "kThreads"};
  std::string meaning;
  switch (action) {
  case MirrorAction::kArrange: meaning = "wants " + to_string(wanted_ranges(a)) + ", slack " + std::to_string(b); break;
  case MirrorAction::kClear: meaning = "all"; break;
  case MirrorAction::kWrite: meaning = "to every pinned page"; break;
  case MirrorAction::kFail:
    meaning = (a % 2 == 0 ? "register" : "unregister") + std::string(" call ") + std::to_string(b) + " from now";
    break;
  case MirrorAction::kBudget: meaning = a == 0 ? "no limit" : "pages"; break;
  case MirrorAction::kThreads: meaning = "so many"; break;
  }
  return "{MirrorAction::" + std::string(kNames[static_cast<int>(action)]) + ", " + std::to_string(mirror) + ", " +
         std::to_string(a) + ", " + std::to_string(b) + "} /* " + meaning + " */";
}

std::vector<PageRange> wanted_ranges(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::uint64_t longest = 1 + random() % 8;
  std::vector<PageRange> ranges;
  for (std::uint64_t at = random() % 4; at < kMirrorPages;) {
    const std::uint64_t count = std::min(1 + random() % longest, kMirrorPages - at);
    if (random() % 4 != 0) {
      ranges.push_back({Pages(at), Pages(count)});
    }
    at += count + (random() % 2 == 0 ? 0 : random() % 5);
  }
  return ranges;
}

std::optional<std::uint64_t> MirrorModel::word(Pages page) const {
  const auto found = words_.find(page.count());
  return found == words_.end() ? std::nullopt : std::optional(found->second);
}

std::string MirrorModel::follow(const std::vector<PageRange>& pieces, const std::vector<PageRange>& wanted, Pages slack,
                                bool succeeded) {
  std::map<std::uint64_t, std::uint64_t> now;
  for (PageRange piece : pieces) {
    for (Pages page = piece.first; page < piece.end(); ++page) {
      const bool asked =
          std::any_of(wanted.begin(), wanted.end(), [page](PageRange range) { return range.contains(page); });
      const auto before = words_.find(page.count());
      if (!asked && before == words_.end()) {
        return "page " + std::to_string(page.count()) + " is pinned, nobody asked for it";
      }
      now[page.count()] = before == words_.end() ? 0 : before->second;
    }
  }
  if (succeeded) {
    Pages sum;
    for (PageRange range : wanted) {
      sum += range.count;
      if (std::none_of(pieces.begin(), pieces.end(),
                       [range](PageRange piece) { return piece.first <= range.first && range.end() <= piece.end(); })) {
        return "no piece of " + to_string(pieces) + " holds " + to_string({range});
      }
    }
    if (sum + slack < Pages(now.size())) {
      return std::to_string(now.size()) + " pages are pinned, wanted are " + std::to_string(sum.count()) +
             " and slack " + std::to_string(slack.count());
    }
  }
  words_ = std::move(now);
  return {};
}

} // namespace stillwake
