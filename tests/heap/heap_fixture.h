// SPDX-License-Identifier: Apache-2.0
// A HeapTest has an emulated device, a reservation of 128 MiB with a heap in it, streams that can be held up, and
// device memory that the CPU reads and writes directly.
#pragma once

#include "allocator/driver/emulation/emulation.h"
#include "tests/heap/stream_gate.h"
#include "tests/heap/test_source.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

namespace stillwake {

class HeapTest : public testing::Test {
protected:
  static constexpr Bytes kReservation = kMiB * 128;

  HeapTest() {
    DriverOptions options;
    options.kind = DriverKind::kEmulated;
    options.emulated_memory = kMiB * 128;
    driver.emplace(Driver::open(options).value());
    device = driver->device(DeviceIndex(0)).value();
    scope = std::make_unique<ContextScope>(*device);
    reservation = Reservation::create(*device, kReservation).value();
    source = std::make_unique<TestSource>(*device, reservation);
    heap = std::make_unique<Heap>(*device, reservation.base(), kReservation, *source);
  }
  ~HeapTest() override {
    for (OwnedStream& stream : streams) {
      EXPECT_TRUE(stream.synchronize());
    }
    heap->check_invariants();
  }

  Stream new_stream() {
    streams.push_back(OwnedStream::create(*device).value());
    return streams.back().get();
  }
  DriverTable& table() { return device->table(); }

  std::byte* allocate(Bytes size, Stream stream, BlockKind kind = BlockKind::kShared) {
    auto block = heap->allocate(size, stream, kind);
    EXPECT_TRUE(block) << (block ? "" : block.error().describe());
    return block ? static_cast<std::byte*>(*block) : nullptr;
  }
  void free(void* pointer, std::optional<Stream> stream) {
    const auto freed = heap->free(pointer, stream);
    EXPECT_TRUE(freed) << (freed ? "" : freed.error().describe());
  }
  void expect_free_refused(void* pointer, std::optional<Stream> stream = std::nullopt) {
    const auto freed = heap->free(pointer, stream);
    ASSERT_FALSE(freed) << pointer;
    EXPECT_EQ(freed.error().code, ErrorCode::kInvalidArgument);
  }
  void set(std::byte* pointer, int value, Bytes size, Stream stream) {
    ASSERT_EQ(
        table().cuMemsetD8Async(DeviceAddress(pointer).value(), static_cast<unsigned char>(value), size.size(), stream),
        CUDA_SUCCESS);
  }
  static bool all_are(const std::byte* pointer, int value, Bytes size) {
    return std::all_of(pointer, pointer + size.size(), [&](std::byte byte) { return byte == std::byte(value); });
  }
  void synchronize(Stream stream) { ASSERT_EQ(table().cuStreamSynchronize(stream), CUDA_SUCCESS); }
  Pages page_of(const std::byte* pointer) const { return pages_below(DeviceAddress(pointer) - reservation.base()); }
  void seal_quiesced() {
    heap->seal();
    ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
    heap->drain_queue();
    heap->consolidate(true);
  }

  std::optional<Driver> driver;
  Device* device = nullptr;
  std::unique_ptr<ContextScope> scope;
  Reservation reservation;
  std::unique_ptr<TestSource> source;
  std::unique_ptr<Heap> heap;
  std::vector<OwnedStream> streams;
};

} // namespace stillwake
