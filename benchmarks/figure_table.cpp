// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/figure_table.h"

#include <cstdio>

namespace stillwake {

double FigureTable::add(Figure figure) {
  figures_.push_back(std::move(figure));
  return figures_.back().gigabytes_per_second();
}

void FigureTable::print() const {
  std::printf("%s\n%-52s %12s %10s %9s\n", title_.c_str(), "", "ms", "GB/s", "ceiling");
  for (const Figure& figure : figures_) {
    std::printf("%-52s %12.3f", figure.name.c_str(), seconds(figure.median) * 1e3);
    if (figure.moved != Bytes(0)) {
      std::printf(" %10.1f", figure.gigabytes_per_second());
    }
    if (figure.ceiling != 0) {
      std::printf(" %9.3f", figure.gigabytes_per_second() / figure.ceiling);
    }
    std::printf("\n");
  }
}

bool FigureTable::write_json(const std::string& path) const {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    return false;
  }
  std::fprintf(file, "{\"title\": \"%s\", \"figures\": [", title_.c_str());
  const char* separator = "";
  for (const Figure& figure : figures_) {
    std::fprintf(file, "%s\n  {\"name\": \"%s\", \"seconds\": %.9f, \"bytes\": %llu, \"ceiling_gb_per_s\": %.3f}",
                 separator, figure.name.c_str(), seconds(figure.median),
                 static_cast<unsigned long long>(figure.moved.count()), figure.ceiling);
    separator = ",";
  }
  std::fprintf(file, "\n]}\n");
  return std::fclose(file) == 0;
}

} // namespace stillwake
