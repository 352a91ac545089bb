// SPDX-License-Identifier: Apache-2.0
// What the transfer layer costs over the bus alone: the page digest beside the device's memory speed, save and restore
// beside raw pinned copies of the same run, for one run of pages and for many.
#include "allocator/driver/emulation/emulation.h"
#include "allocator/memory/memory.h"
#include "allocator/transfer/transfer.h"
#include "benchmarks/figure_table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string_view>

namespace stillwake {
namespace {

constexpr std::uint64_t kHandlePages = 128;
// A gap of one page after each five: what 2,000 blocks of 20 GiB look like.
constexpr std::size_t kScatteredRun = 5;

struct Options {
  Bytes size; ///< 0: what suits the driver
  int repeat = 5;
  std::string json;
};

template <class T> T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().describe().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

class Bench {
public:
  Bench(Driver& driver, const Options& options)
      : device_(*must(driver.device(DeviceIndex(0)))), options_(options), table_(driver.describe()),
        pages_(pages_holding(options.size).count() + pages_holding(options.size).count() / kScatteredRun + 1) {
    engine_ = must(TransferEngine::open(device_, driver.emulation()));
    stream_ = must(OwnedStream::create(device_));
    reservation_ = must(Reservation::create(device_, Bytes(Pages(pages_))));
    for (std::uint64_t page = 0; page < pages_; page += kHandlePages) {
      physical_.push_back(must(Physical::create(device_, Pages(std::min(kHandlePages, pages_ - page)))));
      mapped_.push_back(must(reservation_.map(Pages(page), physical_.back())));
    }
    must(reservation_.allow_access({Pages(0), Pages(pages_)}));
    mirror_ = must(Mirror::create(arena_, device_, Bytes(Pages(pages_))));
    std::vector<PageRange> pieces;
    for (std::uint64_t page = 0; page < pages_; page += kPiecePages) {
      pieces.push_back({Pages(page), Pages(std::min(kPiecePages, pages_ - page))});
    }
    must(must(mirror_->arrange(pieces, Pages(0)))->finish());
  }

  int run() {
    memory_ceiling();
    const double out = raw("raw pinned D2H, 256 MiB a copy", true);
    const double in = raw("raw pinned H2D, 256 MiB a copy", false);
    both_ways("one run", contiguous(), out, in);
    both_ways("runs of 10 MiB", scattered(), out, in);
    table_.print();
    if (!options_.json.empty() && !table_.write_json(options_.json)) {
      std::fprintf(stderr, "cannot write '%s'\n", options_.json.c_str());
      return 1;
    }
    return 0;
  }

private:
  static constexpr std::uint64_t kPiecePages = 512;

  std::uint64_t wanted_pages() const { return pages_holding(options_.size).count(); }
  std::vector<std::size_t> contiguous() const {
    std::vector<std::size_t> pages(wanted_pages());
    for (std::size_t i = 0; i < pages.size(); ++i) {
      pages[i] = i;
    }
    return pages;
  }
  std::vector<std::size_t> scattered() const {
    std::vector<std::size_t> pages(wanted_pages());
    for (std::size_t i = 0; i < pages.size(); ++i) {
      pages[i] = i + i / kScatteredRun;
    }
    return pages;
  }

  // The median of several runs after one that does not count.
  Duration time(const std::function<void()>& work) {
    std::vector<Duration> times;
    for (int i = 0; i <= options_.repeat; ++i) {
      const TimePoint start = std::chrono::steady_clock::now();
      work();
      if (i != 0) {
        times.push_back(std::chrono::steady_clock::now() - start);
      }
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void memory_ceiling() {
    const ContextScope scope(device_);
    DriverTable& table = device_.table();
    const Bytes half = Bytes(Pages(wanted_pages() / 2));
    const CUdeviceptr base = reservation_.base().value();
    must(STILLWAKE_CALL(table, "filling", cuMemsetD8Async, base, 0x5a, Bytes(Pages(pages_)).size(), stream_.get()));
    table_.add(
        {"device memory, filling", time([&] {
           must(STILLWAKE_CALL(table, "filling", cuMemsetD8Async, base, 0x5a, options_.size.size(), stream_.get()));
           must(stream_.synchronize());
         }),
         options_.size});
    table_.add({"device memory, copying (read and written)", time([&] {
                  must(STILLWAKE_CALL(table, "copying", cuMemcpyDtoDAsync, base + half.size(), base, half.size(),
                                      stream_.get()));
                  must(stream_.synchronize());
                }),
                half * 2});
  }

  double raw(const char* name, bool out) {
    const ContextScope scope(device_);
    DriverTable& table = device_.table();
    return table_.add(
        {name, time([&] {
           for (std::uint64_t page = 0; page < wanted_pages(); page += kLargestCopy) {
             const std::size_t bytes = Bytes(Pages(std::min(kLargestCopy, wanted_pages() - page))).size();
             const CUdeviceptr at = reservation_.at(Pages(page)).value();
             std::byte* host = mirror_->at(Pages(page));
             must(out ? STILLWAKE_CALL(table, "copying", cuMemcpyDtoHAsync, host, at, bytes, stream_.get())
                      : STILLWAKE_CALL(table, "copying", cuMemcpyHtoDAsync, at, host, bytes, stream_.get()));
           }
           must(stream_.synchronize());
         }),
         options_.size});
  }

  void both_ways(const std::string& layout, const std::vector<std::size_t>& pages, double out, double in) {
    std::vector<DeviceAddress> addresses;
    std::vector<SaveTask> saves;
    for (const std::size_t page : pages) {
      addresses.push_back(reservation_.at(Pages(page)));
      SaveTask& task = saves.emplace_back();
      task.device = addresses.back();
      task.host = mirror_->at(Pages(page));
      task.page = Pages(page);
      task.piece = static_cast<std::uint32_t>(page / kPiecePages);
    }
    if (engine_->has_kernels()) {
      table_.add({"digests, " + layout, time([&] { must(engine_->digest(addresses)); }), options_.size});
    }
    table_.add({"save, all changed, " + layout, time([&] { must(engine_->save(saves)); }), options_.size, out});
    for (SaveTask& task : saves) {
      task.known = task.digest;
      task.known_encoding = task.encoding;
    }
    table_.add({"save, unchanged, " + layout, time([&] { must(engine_->save(saves)); })});
    for (SaveTask& task : saves) {
      task.trusted = true;
    }
    table_.add({"save, trusted, " + layout, time([&] { must(engine_->save(saves)); })});
    restore(layout, saves, in);
  }

  void restore(const std::string& layout, const std::vector<SaveTask>& saved, double in) {
    std::vector<RestoreTask> tasks;
    for (const SaveTask& task : saved) {
      tasks.push_back({task.device, task.host, task.piece, task.encoding, task.digest});
    }
    for (const Bytes chunk : {kMiB * 64, kMiB * 256}) {
      const std::string name = layout + ", chunks of " + readable(chunk);
      std::vector<Duration> queued;
      std::vector<Duration> first;
      const std::size_t last_of_first = std::min<std::size_t>(tasks.size(), 128) - 1;
      const Duration whole = time([&] {
        const TimePoint start = std::chrono::steady_clock::now();
        const std::unique_ptr<RestoreJob> job = must(engine_->restore(tasks, chunk));
        queued.push_back(std::chrono::steady_clock::now() - start);
        while (!must(job->is_done(job->chunk_of(last_of_first)))) {}
        first.push_back(std::chrono::steady_clock::now() - start);
        if (!must(job->finish()).empty()) {
          std::fprintf(stderr, "a page came back wrong\n");
          std::exit(1);
        }
      });
      table_.add({"restore, verified, " + name, whole, options_.size, in});
      table_.add({"restore returns, " + name, median(queued)});
      table_.add({"first 256 MiB ready, " + name, median(first)});
    }
  }

  static Duration median(std::vector<Duration> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  static constexpr std::uint64_t kLargestCopy = 128;
  Device& device_;
  const Options options_;
  FigureTable table_;
  const std::uint64_t pages_;
  std::unique_ptr<TransferEngine> engine_;
  OwnedStream stream_;
  HostArena arena_;
  std::unique_ptr<Mirror> mirror_;
  Reservation reservation_;
  std::vector<Physical> physical_;
  std::vector<Mapping> mapped_;
};

std::optional<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--size") {
      const Result<Bytes> size = parse_bytes(argv[i + 1]);
      if (!size || *size < kMiB * 16) {
        return std::nullopt;
      }
      options.size = Bytes(pages_holding(*size));
    } else if (name == "--repeat") {
      options.repeat = std::atoi(argv[i + 1]);
    } else if (name == "--json") {
      options.json = argv[i + 1];
    } else {
      return std::nullopt;
    }
  }
  return argc % 2 == 1 && options.repeat > 0 ? std::optional(options) : std::nullopt;
}

} // namespace
} // namespace stillwake

int main(int argc, char** argv) {
  using namespace stillwake;
  std::optional<Options> options = parse(argc, argv);
  if (!options) {
    std::fprintf(stderr, "usage: %s [--size 20GiB] [--repeat 5] [--json FILE]   (size: 16MiB and more)\n", argv[0]);
    return 2;
  }
  Driver driver = must(Driver::open());
  if (options->size == Bytes(0)) {
    options->size = driver.kind() == DriverKind::kCuda ? kGiB * 20 : kMiB * 256;
  }
  return Bench(driver, *options).run();
}
