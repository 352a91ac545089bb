// SPDX-License-Identifier: Apache-2.0
// A TargetTable holds figures that have something to reach: each beside its ceiling of the same run, with the target
// and whether it was met. Written as a table, last, and as JSON.
#pragma once

#include <string>
#include <vector>

namespace stillwake {

struct TargetRow {
  std::string name;
  double measured = 0;
  std::string unit;   ///< "of the bus", "x", "ms"
  std::string beside; ///< what it was compared with, measured in the same run
  double target = 0;
  bool at_most = false; ///< the target is an upper bound; else a lower one

  bool met() const { return at_most ? measured <= target : measured >= target; }
};

class TargetTable {
public:
  void add(TargetRow row) { rows_.push_back(std::move(row)); }
  void print() const;
  /// False when the file cannot be written.
  [[nodiscard]] bool write_json(const std::string& path, const std::string& title) const;

private:
  std::vector<TargetRow> rows_;
};

} // namespace stillwake
