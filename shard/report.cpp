// SPDX-License-Identifier: Apache-2.0
#include "shard/report.h"

#include "allocator/base/base.h"

#include <fmt/format.h>

namespace stillwake {
namespace {

const char* name_of(Report::Kind kind) {
  switch (kind) {
  case Report::Kind::kSleep: return "sleep";
  case Report::Kind::kWake: return "wake";
  case Report::Kind::kSwap: return "swap";
  }
  return "transition";
}

} // namespace

double ReportStep::gigabytes_per_second() const {
  const double time = seconds(took);
  return time > 0 ? static_cast<double>(bytes.count()) / 1e9 / time : 0;
}

std::string Report::line() const {
  std::string text = fmt::format("{}: ", name_of(kind));
  if (is_no_op()) {
    text += fmt::format("nothing to do for {} shards", shards);
    if (freed > Bytes(0)) {
      text += fmt::format(", {} freed that stayed before", readable(freed));
    }
  } else {
    text += fmt::format("{} of {} shards, {} live, {} copied in {} copies", shards_moved, shards, readable(live),
                        readable(copied), copies);
    const std::pair<const char*, Bytes> others[] = {{"unchanged", unchanged}, {"trusted", trusted}, {"zero", zero},
                                                    {"discarded", discarded}, {"mapped", mapped},   {"freed", freed},
                                                    {"pinned", host_pinned}};
    for (const auto& [what, size] : others) {
      if (size > Bytes(0)) {
        text += fmt::format(", {} {}", readable(size), what);
      }
    }
    if (kind != Kind::kSleep) {
      text += verified ? ", verified" : ", unverified";
    }
  }
  if (!leftovers.empty()) {
    text += fmt::format(", NOT freed {} ({}: {})", readable(not_freed), leftovers.front().shard, leftovers.front().why);
  }
  text += fmt::format(", {:.3f} s", seconds(took));
  for (const ReportStep& step : steps) {
    text += fmt::format("; {} {:.4f} s", step.name, seconds(step.took));
    if (step.bytes > Bytes(0)) {
      text += fmt::format(" ({:.1f} GB/s)", step.gigabytes_per_second());
    }
  }
  return text;
}

} // namespace stillwake
