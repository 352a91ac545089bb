// SPDX-License-Identifier: Apache-2.0
// What a heap asks of its source: how often, how much, where; and what it does without an answer.
#include "tests/heap/heap_fixture.h"

namespace stillwake {
namespace {

TEST_F(HeapTest, AThousandSmallBlocksNeedFewGrowths) {
  const Stream stream = new_stream();
  for (int index = 0; index < 1000; ++index) {
    allocate(Bytes(10'000), stream); // 10,240 bytes each: 4.9 pages in all
  }
  EXPECT_EQ(source->calls.size(), 3u); // 1 + 2 + 4 pages
  EXPECT_EQ(heap->stats().live + heap->stats().backed_free, kPageBytes * 7);
}

TEST_F(HeapTest, GrowthUsesTheFreeTailBeforeTheHole) {
  const Stream stream = new_stream();
  source->most = Pages(1);
  std::byte* first = allocate(kMiB / 2, stream);
  std::byte* second = allocate(kMiB * 3, stream); // 1.5 MiB are there
  EXPECT_EQ(second, first + kMiB.size() / 2);
  ASSERT_EQ(source->calls.size(), 2u);
  EXPECT_EQ(source->calls[1].hole.first, Pages(1));
  EXPECT_EQ(source->calls[1].at_least, Pages(1));
  std::memset(second, 1, kMiB.size() * 3);
}

TEST_F(HeapTest, FreeSpaceIsTakenBestFitLowestFirst) {
  const Stream stream = new_stream();
  std::byte* blocks[7];
  for (int index = 0; index < 7; ++index) {
    blocks[index] = allocate(index == 1                 ? kMiB * 4
                             : index == 3 || index == 5 ? kMiB * 2
                                                        : Bytes(2 * 1024 * 1024 - 512),
                             stream);
  }
  for (const int index : {1, 5, 3}) {
    free(blocks[index], stream);
  }
  EXPECT_EQ(allocate(kMiB * 2 - Bytes(4096), stream), blocks[3]);
  EXPECT_EQ(allocate(kMiB * 2 - Bytes(4096), stream), blocks[5]);
  EXPECT_EQ(allocate(kMiB * 2 - Bytes(4096), stream), blocks[1]);
  heap->check_invariants();
}

TEST_F(HeapTest, OneHandleBlocksHaveTheirPagesForThemselves) {
  const Stream stream = new_stream();
  allocate(Bytes(512), stream); // leaves most of a page free: not for a one-handle block
  std::byte* block = allocate(kMiB * 5, stream, BlockKind::kOneHandle);
  ASSERT_EQ(source->calls.size(), 2u);
  EXPECT_EQ(source->calls[1].kind, BlockKind::kOneHandle);
  EXPECT_EQ(source->calls[1].at_least, Pages(3));
  EXPECT_EQ((DeviceAddress(block) - reservation.base()) % kPageBytes, Bytes(0));
  EXPECT_EQ(source->handle_at(page_of(block)), Pages(3));
  const auto found = heap->find(block + kMiB.size() * 6 - 1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->size, kMiB * 6);
  EXPECT_EQ(found->kind, BlockKind::kOneHandle);

  // Freed and asked for again: the same handle, on its own stream at once, without growth.
  free(block, stream);
  EXPECT_EQ(allocate(kMiB * 6, stream, BlockKind::kOneHandle), block);
  EXPECT_EQ(source->calls.size(), 2u);
  // Freed, it is room for anybody; while somebody else is in it, a one-handle block needs another place.
  free(block, stream);
  std::byte* guest = allocate(kMiB * 5, stream);
  EXPECT_EQ(guest, block);
  std::byte* other = allocate(kMiB * 6, stream, BlockKind::kOneHandle);
  EXPECT_EQ(source->calls.size(), 3u);
  EXPECT_EQ(source->handle_at(page_of(other)), Pages(3));
}

TEST_F(HeapTest, AHandleIsForgottenOverASleep) {
  const Stream stream = new_stream();
  std::byte* block = allocate(kMiB * 4, stream, BlockKind::kOneHandle);
  free(block, stream);
  seal_quiesced();
  heap->unseal();
  EXPECT_NE(allocate(kMiB * 4, stream, BlockKind::kOneHandle), block); // the wake may have put other handles there
}

TEST_F(HeapTest, OutOfMemoryLeavesEverythingAsItWas) {
  const Stream stream = new_stream();
  std::byte* block = allocate(kMiB, stream);
  std::memset(block, 7, kMiB.size());
  const HeapStats before = heap->stats();
  source->fail = true;
  for (const BlockKind kind : {BlockKind::kShared, BlockKind::kOneHandle}) {
    const auto more = heap->allocate(kMiB * 8, stream, kind);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, ErrorCode::kOutOfDeviceMemory);
    EXPECT_EQ(more.error().message, "the test says there is no memory");
    heap->check_invariants();
  }
  const HeapStats after = heap->stats();
  EXPECT_EQ(after.live, before.live);
  EXPECT_EQ(after.backed_free, before.backed_free);
  EXPECT_EQ(after.cached, before.cached);
  source->fail = false;
  allocate(kMiB * 8, stream);
  EXPECT_TRUE(all_are(block, 7, kMiB));
}

TEST_F(HeapTest, ADeviceThatIsFullIsOutOfMemoryAndNothingLeaks) {
  const Stream stream = new_stream();
  driver->emulation()->set_capacity(DeviceIndex(0), kMiB * 16);
  const auto block = heap->allocate(kMiB * 32, stream);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code, ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(driver->emulation()->used(DeviceIndex(0)), Bytes(0));
  allocate(kMiB * 16, stream);
}

TEST_F(HeapTest, WithoutAddressesInOnePieceItSaysSo) {
  const Stream stream = new_stream();
  allocate(kReservation, stream);
  const auto block = heap->allocate(Bytes(1), stream);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code, ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(block.error().message,
            "no 512 B of neighbouring addresses are free in a reservation of " + exact(kReservation) +
                "; free blocks of it, or reserve more: other memory of the device does not help");
}

TEST_F(HeapTest, TheSourceMayFreeBlocksButNotAllocate) {
  const Stream stream = new_stream();
  std::byte* spare = allocate(kMiB * 4, stream);
  source->fail = true;
  std::optional<ErrorCode> inner;
  source->on_back = [&] {
    const auto nested = heap->allocate(kMiB * 64, stream);
    inner = nested ? std::nullopt : std::optional(nested.error().code);
    free(spare, stream); // "memory is short"
  };
  EXPECT_EQ(allocate(kMiB * 4, stream), spare);
  EXPECT_EQ(inner, ErrorCode::kBusy);
}

} // namespace
} // namespace stillwake
