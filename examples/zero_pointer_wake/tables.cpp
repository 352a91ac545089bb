// SPDX-License-Identifier: Apache-2.0
#include "examples/zero_pointer_wake/tables.h"

#include "examples/zero_pointer_wake/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>

namespace example {

std::string size_text(stillwake::Bytes size) {
  const auto count = static_cast<double>(size.count());
  if (size < stillwake::kKiB) {
    return fmt::format("{} B", size.count());
  }
  if (size < stillwake::kMiB) {
    return fmt::format("{:.1f} KiB", count / (1 << 10));
  }
  return size < stillwake::kGiB ? fmt::format("{:.1f} MiB", count / (1 << 20))
                                : fmt::format("{:.2f} GiB", count / (1 << 30));
}

void print_tensors(const Model& model, bool all) {
  constexpr std::size_t kHead = 10;
  constexpr std::size_t kTail = 4;
  std::size_t count = 0; // of the first copy: a tensor of the file stands once in it
  const auto& tensors = model.tensors();
  while (count < tensors.size() && (count == 0 || tensors[count].tensor != tensors[0].tensor)) {
    ++count;
  }
  const bool shorten = !all && count > kHead + kTail + 1;
  std::size_t widest = 4;
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_shown = !shorten || i < kHead || i >= count - kTail;
    widest = is_shown ? std::max(widest, printable_name(tensors[i].tensor->name).size()) : widest;
  }
  fmt::print("  {:<{}}  {:<5} {:<14} {:>10}  {:<18} {}\n", "name", widest, "dtype", "shape", "size", "address",
             "shard");
  for (std::size_t i = 0; i < count; ++i) {
    if (shorten && i == kHead) {
      fmt::print("  ... {} more; --all shows them\n", count - kHead - kTail);
      i = count - kTail;
    }
    const PlacedTensor& placed = tensors[i];
    fmt::print("  {:<{}}  {:<5} {:<14} {:>10}  {:<18} {}\n", printable_name(placed.tensor->name), widest,
               placed.tensor->dtype, shape_text(*placed.tensor), size_text(placed.tensor->size()),
               placed.pointer == nullptr ? "none, no bytes" : fmt::format("{}", fmt::ptr(placed.pointer)),
               model.shard(placed.shard).name());
  }
}

void print_report(const stillwake::Report& report, double bus) {
  const bool is_sleep = report.kind == stillwake::Report::Kind::kSleep;
  const double seconds = stillwake::seconds(report.took);
  fmt::print("{}: {} live, {} copied, {} unchanged, {} zero, {} {} in {:.4f} s\n", is_sleep ? "sleep" : "wake",
             size_text(report.live), size_text(report.copied), size_text(report.unchanged), size_text(report.zero),
             size_text(is_sleep ? report.freed : report.mapped), is_sleep ? "freed" : "mapped", seconds);
  for (const stillwake::ReportStep& step : report.steps) {
    fmt::print("  {:<20} {:>9.4f} s", step.name, stillwake::seconds(step.took));
    if (step.bytes != stillwake::Bytes(0)) {
      fmt::print("  {:>10}  {:>8.2f} GB/s", size_text(step.bytes), step.gigabytes_per_second());
    }
    fmt::print("\n");
  }
  if (report.copied != stillwake::Bytes(0) && seconds > 0) {
    const double rate = static_cast<double>(report.copied.count()) / seconds;
    fmt::print("  {:<20} {:>9.4f} s  {:>10}  {:>8.2f} GB/s, {:.2f} of the bus alone ({:.2f} GB/s)\n", "whole", seconds,
               size_text(report.copied), rate / 1e9, rate / bus, bus / 1e9);
  }
  for (const stillwake::NotFreed& left : report.leftovers) {
    fmt::print("  not freed: {} of shard {}, {}\n", size_text(left.size), left.shard, left.why);
  }
}

} // namespace example
