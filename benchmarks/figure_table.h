// SPDX-License-Identifier: Apache-2.0
// A FigureTable collects what a benchmark measured, each figure beside its ceiling of the same run, and writes it as a
// table and as JSON.
#pragma once

#include "allocator/base/base.h"

#include <string>
#include <vector>

namespace stillwake {

struct Figure {
  std::string name;
  Duration median{0};
  Bytes moved{};      ///< none: a time alone
  double ceiling = 0; ///< GB/s (1e9) of the same run; 0: it is a ceiling itself, or has none
  double gigabytes_per_second() const { return static_cast<double>(moved.count()) / 1e9 / seconds(median); }
};

class FigureTable {
public:
  explicit FigureTable(std::string title) : title_(std::move(title)) {}

  /// Answers the rate in GB/s, to be a ceiling for others.
  double add(Figure figure);
  void print() const;
  /// False when the file cannot be written.
  [[nodiscard]] bool write_json(const std::string& path) const;

private:
  std::string title_;
  std::vector<Figure> figures_;
};

} // namespace stillwake
