// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/target_table.h"

#include <cstdio>
#include <fstream>

namespace stillwake {

void TargetTable::print() const {
  std::printf("%-52s %10s %-12s %-4s %8s  %-4s %s\n", "figure", "measured", "unit", "", "target", "met", "beside");
  for (const TargetRow& row : rows_) {
    std::printf("%-52s %10.4g %-12s %-4s %8.4g  %-4s %s\n", row.name.c_str(), row.measured, row.unit.c_str(),
                row.at_most ? "<=" : ">=", row.target, row.met() ? "yes" : "NO", row.beside.c_str());
  }
}

bool TargetTable::write_json(const std::string& path, const std::string& title) const {
  std::ofstream file(path);
  file << "{\"title\": \"" << title << "\", \"figures\": [";
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const TargetRow& row = rows_[i];
    file << (i == 0 ? "\n" : ",\n") << "  {\"name\": \"" << row.name << "\", \"measured\": " << row.measured
         << ", \"unit\": \"" << row.unit << "\", \"target\": " << row.target
         << ", \"at_most\": " << (row.at_most ? "true" : "false") << ", \"met\": " << (row.met() ? "true" : "false")
         << ", \"beside\": \"" << row.beside << "\"}";
  }
  file << "\n]}\n";
  return static_cast<bool>(file);
}

} // namespace stillwake
