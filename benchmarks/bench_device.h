// SPDX-License-Identifier: Apache-2.0
// A BenchDevice is one device as the transition benchmarks use it: the bus alone, blocks whose every page changes,
// time.
#pragma once

#include "allocator/host/host.h"
#include "allocator/memory/memory.h"
#include "shard/stillwake.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <type_traits>
#include <vector>

namespace stillwake {

/// The value, or the end of the program with the error on stderr.
template <class T> T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().describe().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

double median(std::vector<double> seconds);
/// Host seconds that the work takes.
double time_once(const std::function<void()>& work);
/// Makes the machine hold so much memory once, so that its growth is in no figure.
void touch_host_memory(Bytes size);

class BenchDevice {
public:
  BenchDevice(Driver& driver, DeviceIndex index);

  /// Seconds for `size` over the bus alone: pinned, copies of 256 MiB, the best of three.
  double bus(Bytes size, bool to_host);
  /// Waits for the stream.
  void wait() { must(stream_.synchronize()); }
  /// Somebody else works on the device for a while, in memory of his own.
  void neighbour_works(Duration duration);
  /// Blocks of equal size that together hold `size`.
  std::vector<void*> allocate(Shard& shard, Bytes size, std::size_t count);
  /// Writes every byte of every block; another value changes every page.
  void write(const std::vector<void*>& blocks, Bytes each, unsigned char value);
  /// Aborts the program when the ends of a block do not hold the value.
  void expect(const std::vector<void*>& blocks, Bytes each, unsigned char value);

  Stream stream() const { return stream_.get(); }
  Device& device() const { return device_; }
  DeviceIndex index() const { return device_.index(); }

private:
  Device& device_;
  OwnedStream stream_;
  HostArena arena_;
  std::unique_ptr<Mirror> pinned_;
  Physical memory_;
  Reservation addresses_;
  Mapping mapped_;
};

} // namespace stillwake
