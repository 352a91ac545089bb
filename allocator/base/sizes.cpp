// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/sizes.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace stillwake {

Result<Bytes> parse_bytes(std::string_view text) {
  const std::string quoted = "'" + std::string(text) + "'";
  double number = 0;
  const auto [rest, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  while (!unit.empty() && unit.front() == ' ') {
    unit.remove_prefix(1);
  }
  double scale = 0;
  if (unit.empty() || unit == "B") {
    scale = 1;
  } else if (unit == "KiB") {
    scale = static_cast<double>(kKiB.count());
  } else if (unit == "MiB") {
    scale = static_cast<double>(kMiB.count());
  } else if (unit == "GiB") {
    scale = static_cast<double>(kGiB.count());
  } else if (unit == "TiB") {
    scale = static_cast<double>(kGiB.count()) * 1024;
  }
  const double bytes = number * scale;
  if (failed != std::errc{} || scale == 0 || !std::isfinite(bytes) || bytes < 0 || bytes >= 0x1p63) {
    return failure(ErrorCode::kInvalidArgument,
                   quoted + " is no size; write a count of bytes or a number with KiB, MiB, GiB or TiB, as in 8GiB");
  }
  return Bytes(static_cast<std::uint64_t>(bytes));
}

std::string readable(Bytes size) {
  char text[32];
  const double count = static_cast<double>(size.count());
  if (size >= kGiB) {
    std::snprintf(text, sizeof(text), "%.2f GiB", count / static_cast<double>(kGiB.count()));
  } else if (size >= kMiB) {
    std::snprintf(text, sizeof(text), "%.1f MiB", count / static_cast<double>(kMiB.count()));
  } else if (size >= kKiB) {
    std::snprintf(text, sizeof(text), "%.1f KiB", count / static_cast<double>(kKiB.count()));
  } else {
    std::snprintf(text, sizeof(text), "%llu B", static_cast<unsigned long long>(size.count()));
  }
  return text;
}

std::string exact(Bytes size) {
  return size < kKiB ? readable(size) : readable(size) + " (" + std::to_string(size.count()) + " bytes)";
}

std::string shortage(Bytes needed, Bytes free, Bytes limit, const std::string& whose) {
  return "needs " + exact(needed) + " more, free are " + exact(free) + " of " + readable(limit) + " (" + whose + ")";
}

} // namespace stillwake
