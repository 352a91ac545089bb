// SPDX-License-Identifier: Apache-2.0
// ShardWork is a ShardTest with work on streams: fills, copies and graphs that are in flight when a transition begins.
#pragma once

#include "tests/heap/stream_gate.h"
#include "tests/shard/shard_fixture.h"

#include <algorithm>
#include <thread>

namespace stillwake {

class ShardWork : public ShardTest {
protected:
  /// Queues a fill with one byte; does not wait.
  void queue_fill(void* block, Bytes size, unsigned char value, Stream stream, int index = 0) {
    ContextScope scope(device(index));
    EXPECT_EQ(table().cuMemsetD8Async(DeviceAddress(block).value(), value, size.size(), stream), CUDA_SUCCESS);
  }
  void queue_copy(void* to, const void* from, Bytes size, Stream stream) {
    ContextScope scope(device());
    EXPECT_EQ(table().cuMemcpyDtoDAsync(DeviceAddress(to).value(), DeviceAddress(from).value(), size.size(), stream),
              CUDA_SUCCESS);
  }
  void hold(StreamGate& gate, Stream stream, int index = 0) {
    ContextScope scope(device(index));
    gate.hold(table(), stream);
  }
  void synchronize(int index = 0) {
    ContextScope scope(device(index));
    EXPECT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  /// Every byte is `value`.
  ::testing::AssertionResult is_filled(const void* block, Bytes size, unsigned char value, int index = 0) {
    const std::uint64_t wanted = 0x0101010101010101ull * value;
    const auto words = read(block, size, index);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] != wanted) {
        return ::testing::AssertionFailure() << "word " << i << " is " << std::hex << words[i] << ", not " << wanted;
      }
    }
    return ::testing::AssertionSuccess();
  }
  /// Fails the nth (1 is the next) such call.
  void fail(CallId call, std::uint64_t nth, CUresult error = CUDA_ERROR_UNKNOWN, bool persistent = false) {
    gate().arm({Fault{call, nth, error, persistent}});
  }
  void heal() { gate().arm({}); }
  /// So many free pages are left on the device while the result lives.
  std::vector<Physical> neighbour_leaving(Pages left, int index = 0) {
    std::vector<Physical> kept;
    auto room = take_pages(device(index), left);
    EXPECT_TRUE(room) << room.error().describe();
    // A GPU gives memory back on its own time, and what it calls free is not what can be had: until nothing is left.
    for (bool found_any = true; found_any;) {
      found_any = false;
      for (Pages wanted = std::max(Pages(1), pages_below(free_memory(index))); wanted > Pages(0);) {
        auto taken = take_pages(device(index), wanted);
        if (taken) {
          std::move(taken->begin(), taken->end(), std::back_inserter(kept));
          found_any = true;
        } else {
          wanted = Pages(wanted.count() / 2);
        }
      }
      if (!emulated()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    return kept; // `room` is given back here
  }
};

} // namespace stillwake
