// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/bench_device.h"

#include <algorithm>
#include <sys/mman.h>
#include <thread>

namespace stillwake {
namespace {

constexpr Bytes kBusCopy = kMiB * 256;

} // namespace

double median(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double time_once(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void touch_host_memory(Bytes size) {
  void* memory = mmap(nullptr, size.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return;
  }
  madvise(memory, size.size(), MADV_HUGEPAGE);
  const std::size_t parts = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (std::size_t part = 0; part < parts; ++part) {
    threads.emplace_back([=] {
      const std::size_t begin = size.size() / parts * part;
      const std::size_t end = part + 1 == parts ? size.size() : begin + size.size() / parts;
      for (std::size_t at = begin; at < end; at += 4096) {
        static_cast<volatile char*>(memory)[at] = 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  munmap(memory, size.size());
}

BenchDevice::BenchDevice(Driver& driver, DeviceIndex index)
    : device_(*must(driver.device(index))), stream_(must(OwnedStream::create(device_))),
      pinned_(must(Mirror::create(arena_, device_, kBusCopy))),
      memory_(must(Physical::create(device_, pages_holding(kBusCopy)))),
      addresses_(must(Reservation::create(device_, kBusCopy))), mapped_(must(addresses_.map(Pages(0), memory_))) {
  const PageRange all{Pages(0), pages_holding(kBusCopy)};
  must(addresses_.allow_access(all));
  must(must(pinned_->arrange(std::span(&all, 1), Pages(0)))->finish());
}

double BenchDevice::bus(Bytes size, bool to_host) {
  const ContextScope scope(device_);
  DriverTable& table = device_.table();
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    best = std::min(best, time_once([&] {
                      for (Bytes done; done < size; done += kBusCopy) {
                        const std::size_t part = std::min(kBusCopy, size - done).size();
                        const CUdeviceptr at = addresses_.base().value();
                        std::byte* host = pinned_->at(Pages(0));
                        must(to_host ? STILLWAKE_CALL(table, "copying", cuMemcpyDtoHAsync, host, at, part, stream())
                                     : STILLWAKE_CALL(table, "copying", cuMemcpyHtoDAsync, at, host, part, stream()));
                      }
                      must(stream_.synchronize());
                    }));
  }
  return best;
}

void BenchDevice::neighbour_works(Duration duration) {
  const ContextScope scope(device_);
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 16; ++i) {
      must(STILLWAKE_CALL(device_.table(), "filling", cuMemsetD8Async, addresses_.base().value(),
                          static_cast<unsigned char>(i), kBusCopy.size(), stream()));
    }
    must(stream_.synchronize());
  }
}

std::vector<void*> BenchDevice::allocate(Shard& shard, Bytes size, std::size_t count) {
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.push_back(must(shard.allocate(size / count, stream())));
  }
  return blocks;
}

void BenchDevice::write(const std::vector<void*>& blocks, Bytes each, unsigned char value) {
  const ContextScope scope(device_);
  for (void* block : blocks) {
    must(STILLWAKE_CALL(device_.table(), "filling", cuMemsetD8Async, DeviceAddress(block).value(), value, each.size(),
                        stream()));
  }
  must(stream_.synchronize());
}

void BenchDevice::expect(const std::vector<void*>& blocks, Bytes each, unsigned char value) {
  const ContextScope scope(device_);
  for (void* block : blocks) {
    for (const Bytes at : {Bytes(0), each / 2, each - Bytes(1)}) {
      unsigned char found = 0;
      must(STILLWAKE_CALL(device_.table(), "reading", cuMemcpyDtoHAsync, &found, (DeviceAddress(block) + at).value(), 1,
                          stream()));
      must(stream_.synchronize());
      if (found != value) {
        std::fprintf(stderr, "byte %llu of a block is %u, not %u\n", static_cast<unsigned long long>(at.count()), found,
                     value);
        std::abort();
      }
    }
  }
}

} // namespace stillwake
