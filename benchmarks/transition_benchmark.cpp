// SPDX-License-Identifier: Apache-2.0
// Sleeps, wakes and swaps of large shards beside the bus alone of the same run. The targets suit an H200; on the
// emulated driver the program shows that it runs, not how fast.
#include "benchmarks/bench_device.h"
#include "benchmarks/target_table.h"

#include "allocator/driver/driver_layer.h"

#include <array>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>

namespace stillwake {
namespace {

// The driver scrubs released memory in the background, with the copy engines: a copy meanwhile is slower by 30 ms for
// 20 GiB, with no allocator of ours in it, and memory that was created meanwhile makes the next release wait 4 ms; and
// a device that idles answers the next calls late. Between a sleep and a wake somebody else uses the device: work in a
// little memory stands for him.
constexpr auto kScrub = std::chrono::milliseconds(500);

struct Options {
  Bytes size;     // unset: 20 GiB, and a little on the emulation
  int cycles = 0; // unset: 7, and 2 on the emulation
  int devices = 1;
  int churn = 0; // cycles of the row with churn; unset: 1,000, and few on the emulation
  std::string json;
};

std::string text(const char* format, double a, double b = 0) {
  char line[160];
  std::snprintf(line, sizeof(line), format, a, b);
  return line;
}

class Bench {
public:
  Bench(Driver& driver, const Options& options) : driver_(driver), options_(options), gpu_(driver, DeviceIndex(0)) {}

  void run() {
    measure_bus();
    cycles(80, 0.97, 0.98);
    cycles(2000, 0.96, 0.97);
    first_sleeps();
    prepared();
    unchanged();
    first_ready();
    swaps();
    if (options_.devices > 1) {
      two_devices();
    }
    churn();
  }
  TargetTable& table() { return table_; }

private:
  Shard make(const std::string& name, Policy policy = Policy::kPreserve, bool trust = false, int device = 0) {
    ShardOptions options;
    options.name = name;
    options.policy = policy;
    options.trust = trust;
    options.device = DeviceIndex(device);
    return must(Shard::create(driver_, options));
  }

  void measure_bus() {
    out_ = gpu_.bus(options_.size, true);
    in_ = gpu_.bus(options_.size, false);
    const double gigabytes = static_cast<double>(options_.size.count()) / 1e9;
    std::printf("the bus alone: D2H %.2f GB/s (%.4f s), H2D %.2f GB/s (%.4f s) for %.2f GB\n", gigabytes / out_, out_,
                gigabytes / in_, in_, gigabytes);
  }

  void cycles(std::size_t count, double sleep_target, double wake_target) {
    const Bytes each = options_.size / count;
    Shard shard = make("blocks");
    const std::vector<void*> blocks = gpu_.allocate(shard, options_.size, count);
    measure_bus();
    unsigned char value = 1;
    gpu_.write(blocks, each, value);
    must(sleep({&shard}));
    const Bytes pinned = shard.stats().host_pinned;
    const double live = static_cast<double>(options_.size.count());
    std::array<std::vector<double>, 2> slept; // [1]: of memory that was woken at once after the sleep before
    std::array<std::vector<double>, 2> woken; // [1]: at once after the sleep before
    for (int i = 0; i < 2 * options_.cycles; ++i) {
      // Every other wake comes at once, while the driver still scrubs what was released a moment ago.
      const std::size_t at_once = i % 2;
      if (at_once == 0) {
        gpu_.neighbour_works(kScrub);
      }
      Report report;
      const double took = time_once([&] { report = must(wake({&shard})); });
      woken[at_once].push_back(took);
      if (i == 0) {
        std::printf("%s\n", report.line().c_str());
      }
      gpu_.expect(blocks, each, value);
      gpu_.write(blocks, each, ++value);
      slept[at_once].push_back(time_once([&] { report = must(sleep({&shard})); }));
      if (i == 0) {
        std::printf("%s\n", report.line().c_str());
      }
    }
    must(wake({&shard}));
    gpu_.expect(blocks, each, value);
    const std::string blocks_text = std::to_string(count) + " blocks";
    table_.add({"sleep, all pages changed, " + blocks_text, out_ / median(slept[0]), "of the bus",
                text("%.4f s; bus %.4f s", median(slept[0]), out_), sleep_target, false});
    table_.add({"wake, verified, " + blocks_text, in_ / median(woken[0]), "of the bus",
                text("%.4f s; bus %.4f s", median(woken[0]), in_), wake_target, false});
    std::printf("woken at once after the sleep, %s: %.4f s, %.3f of the bus; the sleep after that %.4f s, %.3f\n",
                blocks_text.c_str(), median(woken[1]), in_ / median(woken[1]), median(slept[1]),
                out_ / median(slept[1]));
    table_.add({"pinned host memory, " + blocks_text, static_cast<double>(pinned.count()) / live, "of live",
                text("%.0f bytes; live %.0f", static_cast<double>(pinned.count()), live), 1.01, true});
    later_ = count == 80 ? median(slept[0]) : later_;
    for (void* block : blocks) {
      must(shard.free(block, gpu_.stream()));
    }
  }

  void first_sleeps() {
    std::vector<double> slept;
    for (int i = 0; i < 5; ++i) {
      Shard shard = make("never slept");
      const std::vector<void*> blocks = gpu_.allocate(shard, options_.size, 80);
      gpu_.write(blocks, options_.size / 80, 2);
      Report report;
      slept.push_back(time_once([&] { report = must(sleep({&shard})); }));
      std::printf("first %s\n", report.line().c_str());
    }
    table_.add({"first sleep, nothing prepared / a later one", median(slept) / later_, "x",
                text("%.4f s; later %.4f s", median(slept), later_), 2.1, true});
  }

  void prepared() {
    Shard shard = make("prepared");
    const std::vector<void*> blocks = gpu_.allocate(shard, options_.size, 80);
    gpu_.write(blocks, options_.size / 80, 3);
    const double paid = time_once([&] { must(shard.prepare()); });
    const double first = time_once([&] { must(sleep({&shard})); });
    std::printf("prepare: %.4f s\n", paid);
    table_.add({"first sleep after prepare / a later one", first / later_, "x",
                text("%.4f s; later %.4f s", first, later_), 1.05, true});
  }

  void unchanged() {
    for (const bool trust : {false, true}) {
      Shard shard = make("frozen", Policy::kFrozen, trust);
      const std::vector<void*> blocks = gpu_.allocate(shard, options_.size, 80);
      gpu_.write(blocks, options_.size / 80, 4);
      must(sleep({&shard}));
      std::vector<double> slept;
      for (int i = 0; i < options_.cycles; ++i) {
        gpu_.neighbour_works(kScrub);
        must(wake({&shard}));
        Report report;
        slept.push_back(time_once([&] { report = must(sleep({&shard})); }));
        if (report.copied != Bytes(0)) {
          std::fprintf(stderr, "an unchanged sleep copied: %s\n", report.line().c_str());
          std::exit(1);
        }
        if (i == 0) {
          std::printf("unchanged: %s\n", report.line().c_str());
        }
      }
      table_.add({trust ? "sleep, unchanged, trusted" : "sleep, unchanged, by fingerprint", median(slept) * 1e3, "ms",
                  text("a changed one %.1f ms", later_ * 1e3), trust ? 12.0 : 20.0, true});
    }
  }

  void first_ready() {
    Shard shard = make("layers");
    const std::vector<void*> blocks = gpu_.allocate(shard, options_.size, 80);
    const Bytes each = options_.size / 80;
    gpu_.write(blocks, each, 5);
    must(sleep({&shard}));
    std::vector<double> ready;
    for (int i = 0; i < options_.cycles; ++i) {
      gpu_.neighbour_works(kScrub);
      const auto begin = std::chrono::steady_clock::now();
      Ticket ticket = must(wake({&shard}, std::vector<Stream>{}));
      must(ticket.wait(gpu_.stream(), blocks[0], each));
      gpu_.wait();
      ready.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      must(ticket.result());
      must(sleep({&shard}));
    }
    table_.add({"first block (1/80) ready after wake(set, streams)", median(ready) * 1e3, "ms",
                text("bus alone for it %.1f ms", in_ / 80 * 1e3), 15, true});
  }

  void swaps() {
    Shard a = make("a");
    Shard b = make("b");
    const Bytes each = options_.size / 80;
    const std::vector<void*> in_a = gpu_.allocate(a, options_.size, 80);
    gpu_.write(in_a, each, 11);
    must(sleep({&a}));
    const std::vector<void*> in_b = gpu_.allocate(b, options_.size, 80);
    gpu_.write(in_b, each, 12);
    must(swap({&b}, {&a})); // both are pinned from here on
    std::vector<double> swapped;
    std::vector<double> in_turn;
    for (int i = 0; i < options_.cycles; ++i) {
      const unsigned char value = static_cast<unsigned char>(20 + 2 * i);
      gpu_.write(in_a, each, value);
      Report report;
      swapped.push_back(time_once([&] { report = must(swap({&a}, {&b})); }));
      if (i == 0) {
        std::printf("%s\n", report.line().c_str());
      }
      gpu_.write(in_b, each, value);
      in_turn.push_back(time_once([&] {
        must(sleep({&b}));
        must(wake({&a}));
      }));
      gpu_.expect(in_a, each, value);
    }
    table_.add({"swap of two sets / sleep, then wake", median(swapped) / median(in_turn), "x",
                text("%.4f s; in turn %.4f s", median(swapped), median(in_turn)), 0.65, true});
  }

  void two_devices() {
    BenchDevice other(driver_, DeviceIndex(1));
    const Bytes each = options_.size / 80;
    Shard a = make("first");
    Shard b = make("second", Policy::kPreserve, false, 1);
    const std::vector<void*> in_a = gpu_.allocate(a, options_.size, 80);
    const std::vector<void*> in_b = other.allocate(b, options_.size, 80);
    std::vector<double> times[4]; // sleep one, sleep both, wake one, wake both
    for (int i = 0; i <= options_.cycles; ++i) {
      for (const bool both : {false, true}) {
        const unsigned char value = static_cast<unsigned char>(40 + 4 * i + both);
        gpu_.write(in_a, each, value);
        other.write(in_b, each, value);
        const ShardSet set = both ? ShardSet{&a, &b} : ShardSet{&a};
        const double slept = time_once([&] { must(sleep(set)); });
        gpu_.neighbour_works(kScrub);
        const double woken = time_once([&] { must(wake(set)); });
        gpu_.expect(in_a, each, value);
        other.expect(in_b, each, value);
        if (i > 0) { // the first round pins
          times[both].push_back(slept);
          times[2 + both].push_back(woken);
        }
      }
    }
    table_.add({"sleep, two GPUs at once / one", median(times[1]) / median(times[0]), "x",
                text("%.4f s; one %.4f s", median(times[1]), median(times[0])), 1.1, true});
    table_.add({"wake, two GPUs at once / one", median(times[3]) / median(times[2]), "x",
                text("%.4f s; one %.4f s", median(times[3]), median(times[2])), 1.1, true});
  }

  static Bytes resident() {
    std::ifstream statm("/proc/self/statm");
    std::uint64_t total = 0;
    std::uint64_t pages = 0;
    statm >> total >> pages;
    return Bytes(pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  }

  void churn() {
    Shard shard = make("churn");
    const Bytes each = kMiB * 64 / 500;
    std::vector<void*> blocks = gpu_.allocate(shard, kMiB * 64, 500);
    std::uint64_t random = 1;
    Bytes device[2];
    Bytes host[2];
    std::uint64_t handles[2] = {0, 0};
    std::vector<double> times;
    for (int i = 0; i < options_.churn; ++i) {
      gpu_.write(blocks, each, static_cast<unsigned char>(1 + i % 250));
      times.push_back(time_once([&] { must(sleep({&shard})); }));
      const bool is_last = i + 1 == options_.churn;
      if (i == options_.churn / 10 || is_last) {
        const int at = is_last ? 1 : 0;
        device[at] = must(driver_.memory(DeviceIndex(0))).free;
        host[at] = resident();
        handles[at] = shard.stats().handles;
      }
      must(wake({&shard}));
      for (int k = 0; k < 50; ++k) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        void*& block = blocks[(random >> 33) % blocks.size()];
        must(shard.free(block, gpu_.stream()));
        block = must(shard.allocate(each, gpu_.stream()));
      }
    }
    const auto grown = [](Bytes before, Bytes after) {
      return (static_cast<double>(after.count()) - static_cast<double>(before.count())) / (1 << 20);
    };
    const std::string cycles_text = std::to_string(options_.churn) + " cycles: ";
    table_.add({cycles_text + "device residue grown", grown(device[1], device[0]), "MiB",
                text("median sleep %.2f ms", median(times) * 1e3), 2, true});
    table_.add({cycles_text + "handles while asleep", static_cast<double>(handles[1]), "", "0 expected", 0, true});
    table_.add(
        {cycles_text + "resident memory grown", grown(host[0], host[1]), "MiB", "after a tenth of them", 8, true});
  }

  Driver& driver_;
  const Options options_;
  BenchDevice gpu_;
  TargetTable table_;
  double out_ = 0;
  double in_ = 0;
  double later_ = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) {
      std::fprintf(stderr, "usage: %s [--size 20GiB] [--cycles 7] [--devices 1] [--churn 1000] [--json FILE]\n",
                   argv[0]);
      std::exit(2);
    }
    const char* value = argv[++i];
    if (name == "--size") {
      options.size = must(parse_bytes(value));
    } else if (name == "--cycles") {
      options.cycles = std::max(1, std::atoi(value));
    } else if (name == "--devices") {
      options.devices = std::atoi(value);
    } else if (name == "--churn") {
      options.churn = std::max(2, std::atoi(value));
    } else if (name == "--json") {
      options.json = value;
    } else {
      std::fprintf(stderr, "unknown option %s; there are --size, --cycles, --devices, --churn and --json\n",
                   argv[i - 1]);
      std::exit(2);
    }
  }
  return options;
}

int run(int argc, char** argv) {
  Options options = parse(argc, argv);
  Driver driver = must(Driver::open());
  const bool emulated = driver.kind() == DriverKind::kEmulated;
  options.size = options.size > Bytes(0) ? options.size : emulated ? kMiB * 128 : kGiB * 20;
  options.cycles = options.cycles > 0 ? options.cycles : emulated ? 2 : 7;
  options.churn = options.churn > 0 ? options.churn : emulated ? 20 : 1000;
  const std::string title = driver.describe();
  std::printf("%s\n", title.c_str());
  if (!emulated) {
    touch_host_memory(options.size * 2 + kGiB * 4);
  }
  auto bench = std::make_unique<Bench>(driver, options);
  bench->run();
  bench->table().print();
  if (!options.json.empty() && !bench->table().write_json(options.json, title)) {
    std::fprintf(stderr, "cannot write '%s'\n", options.json.c_str());
    return 1;
  }
  return 0;
}

} // namespace
} // namespace stillwake

int main(int argc, char** argv) { return stillwake::run(argc, argv); }
