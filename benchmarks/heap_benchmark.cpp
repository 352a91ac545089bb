// SPDX-License-Identifier: Apache-2.0
// What a warm allocate + free costs, on one thread and on eight together; and the cold pair beside it. The driver is
// the emulated one: the warm pair makes no driver call, which the counter `driver_calls` shows.
#include "allocator/heap/heap_layer.h"
#include "allocator/memory/memory.h"

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

namespace stillwake {
namespace {

constexpr Bytes kReservation = kMiB * 256;

/// Backs as many pages as are asked for, one handle each time.
class PlainSource : public ExtentSource {
public:
  PlainSource(Device& device, Reservation& reservation) : device_(device), reservation_(reservation) {}
  Result<PageRange> back(PageRange hole, Pages at_least, BlockKind) override {
    auto physical = Physical::create(device_, at_least);
    if (!physical) {
      return failure(physical.error());
    }
    auto mapping = reservation_.map(hole.first, *physical);
    if (!mapping) {
      return failure(mapping.error());
    }
    STILLWAKE_TRY(reservation_.allow_access({hole.first, at_least}));
    physicals_.push_back(std::move(*physical));
    mappings_.push_back(std::move(*mapping));
    return PageRange{hole.first, at_least};
  }

private:
  Device& device_;
  Reservation& reservation_;
  std::vector<Physical> physicals_;
  std::vector<Mapping> mappings_;
};

struct Setup {
  Setup() {
    DriverOptions options;
    options.kind = DriverKind::kEmulated;
    driver.emplace(Driver::open(options).value());
    device = driver->device(DeviceIndex(0)).value();
    reservation = Reservation::create(*device, kReservation).value();
    source = std::make_unique<PlainSource>(*device, reservation);
    heap = std::make_unique<Heap>(*device, reservation.base(), kReservation, *source);
    for (int index = 0; index < 8; ++index) {
      streams.push_back(OwnedStream::create(*device).value());
    }
  }

  std::optional<Driver> driver;
  Device* device = nullptr;
  Reservation reservation;
  std::unique_ptr<PlainSource> source;
  std::unique_ptr<Heap> heap;
  std::vector<OwnedStream> streams;
};

/// One heap for all threads of a run: made by the first, dropped when the last is done.
std::unique_ptr<Setup> shared;

void make(const benchmark::State&) { shared = std::make_unique<Setup>(); }
void drop(const benchmark::State&) { shared.reset(); }

void pair(benchmark::State& state) {
  const Bytes size(static_cast<std::uint64_t>(state.range(0)));
  Heap& heap = *shared->heap;
  const Stream stream = shared->streams[static_cast<std::size_t>(state.thread_index()) % 8].get();
  void* first = *heap.allocate(size, stream);
  (void)heap.free(first, stream);
  const std::uint64_t calls = shared->device->table().gate.calls();
  for (auto _ : state) {
    auto block = heap.allocate(size, stream);
    if (!block || !heap.free(*block, stream)) {
      state.SkipWithError("an allocation or a free failed");
      break;
    }
    benchmark::DoNotOptimize(block);
  }
  state.SetItemsProcessed(state.iterations());
  if (state.threads() == 1) {
    state.counters["driver_calls"] = static_cast<double>(shared->device->table().gate.calls() - calls);
  }
}

BENCHMARK(pair)->Name("warm_pair")->Arg(4096)->Setup(make)->Teardown(drop)->ThreadRange(1, 8)->UseRealTime();
// Over 1 MiB blocks are not cached: each goes through the central map, still without a driver call.
BENCHMARK(pair)->Name("large_pair")->Arg(4 << 20)->Setup(make)->Teardown(drop)->UseRealTime();

} // namespace
} // namespace stillwake

int main(int argc, char** argv) {
  std::printf("emulated driver\n");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
