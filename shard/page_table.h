// SPDX-License-Identifier: Apache-2.0
// A PageTable knows, for every page of a shard, whether its backing is valid and what its digest was. Touched only by
// the holder of the shard's transition.
//
// Awake, an entry with a digest describes a backing that equals what the last verified wake restored (or the last sleep
// saved): a page whose digest is still the same need not be copied. Asleep, every live page's entry is its content.
#pragma once

#include "allocator/transfer/transfer.h"

#include <algorithm>
#include <vector>

namespace stillwake {

struct PageEntry {
  PageEncoding encoding = PageEncoding::kNone;
  bool host_dirty = false;          ///< the host wrote the backing: restored, never "unchanged"
  std::optional<PageDigest> digest; ///< unset: unverified
};

class PageTable {
public:
  explicit PageTable(Pages pages) : entries_(pages.index()) {}

  PageEntry& operator[](Pages page) { return entries_[page.index()]; }
  const PageEntry& operator[](Pages page) const { return entries_[page.index()]; }
  Pages size() const { return Pages(entries_.size()); }

  /// Pages before `end` that have a backing.
  Pages kept(Pages end) const {
    const auto stop = entries_.begin() + static_cast<std::ptrdiff_t>(end.count());
    return Pages(static_cast<std::uint64_t>(std::count_if(
        entries_.begin(), stop, [](const PageEntry& entry) { return entry.encoding != PageEncoding::kNone; })));
  }
  void forget(PageRange range) {
    for (Pages page = range.first; page < range.end(); ++page) {
      entries_[page.index()] = PageEntry();
    }
  }
  void forget_all() { entries_.assign(entries_.size(), PageEntry()); }

private:
  std::vector<PageEntry> entries_;
};

} // namespace stillwake
