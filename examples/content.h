// SPDX-License-Identifier: Apache-2.0
// Fills device memory from host memory and compares the two again, byte by byte, with several threads: 20 GiB in a few
// seconds. Every byte may be changed by a key on its way, as a training step changes weights.
#pragma once

#include "examples/device_copy.h"

#include <vector>

namespace example {

/// Equally many bytes on the device and on the host.
struct Piece {
  std::byte* device = nullptr;
  const std::byte* host = nullptr;
  stillwake::Bytes size;
};

/// Bytes a second over the bus, each direction alone, pinned memory.
struct BusRates {
  double to_host = 0;
  double to_device = 0;
};

class Content {
public:
  /// Opens `threads` lanes with buffers of 32 MiB. Needs no device memory.
  [[nodiscard]] static stillwake::Result<Content> open(stillwake::Driver& driver, stillwake::DeviceIndex device,
                                                       int threads = 4);

  /// device = host ^ key for every piece; returns when all is there.
  [[nodiscard]] stillwake::Result<void> write(const std::vector<Piece>& pieces, unsigned char key = 0);
  /// How many bytes of the device are not host ^ key. Reads every byte.
  [[nodiscard]] stillwake::Result<std::uint64_t> count_different(const std::vector<Piece>& pieces,
                                                                 unsigned char key = 0);
  /// What the bus gives at best: one stream, copies of 32 MiB, the better of two rounds.
  [[nodiscard]] stillwake::Result<BusRates> measure_bus(stillwake::Driver& driver, stillwake::DeviceIndex device);

  /// A lane for the caller's own work, while none of the above runs.
  CopyLane& lane() { return lanes_.front(); }

private:
  explicit Content(std::vector<CopyLane> lanes) : lanes_(std::move(lanes)) {}

  std::vector<CopyLane> lanes_;
};

} // namespace example
