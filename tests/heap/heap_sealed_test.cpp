// SPDX-License-Identifier: Apache-2.0
// A sealed heap: frees that are only noted, pages that come and go.
#include "tests/heap/heap_fixture.h"

namespace stillwake {
namespace {

TEST_F(HeapTest, SealedMeansBusyAndFreesAreNoted) {
  const Stream stream = new_stream();
  std::byte* small = allocate(Bytes(4096), stream);
  std::byte* large = allocate(kMiB * 4, stream);
  std::byte* unknown = allocate(Bytes(4096), stream);
  free(allocate(Bytes(1024), stream), stream); // a cached block is not handed out either
  heap->seal();
  for (const Bytes size : {Bytes(1024), kMiB * 4}) {
    const auto block = heap->allocate(size, stream);
    ASSERT_FALSE(block);
    EXPECT_EQ(block.error().code, ErrorCode::kBusy);
  }
  const std::uint64_t calls = table().gate.calls();
  free(small, stream);
  free(large, stream);
  free(unknown, std::nullopt);
  EXPECT_EQ(table().gate.calls(), calls);
  EXPECT_EQ(heap->stats().queued_frees, 3u);
  EXPECT_EQ(heap->stats().live_blocks, 0u);
  EXPECT_FALSE(heap->find(small));
  for (std::byte* freed : {small, large, unknown}) {
    expect_free_refused(freed); // checked at once
  }
  expect_free_refused(large + 512);
  EXPECT_EQ(heap->live_blocks().size(), 3u); // their places are taken until the queue is carried out
  heap->drain_queue();
  EXPECT_EQ(heap->live_blocks().size(), 0u);
  EXPECT_EQ(heap->stats().queued_frees, 0u);
  heap->check_invariants();
  heap->unseal();
  EXPECT_EQ(allocate(kMiB * 4, stream), small); // joined with its neighbour
}

TEST_F(HeapTest, UnsealCarriesOutWhatWasNoted) {
  const Stream stream = new_stream();
  std::byte* block = allocate(kMiB * 2, stream);
  heap->seal();
  free(block, stream);
  heap->unseal();
  EXPECT_EQ(heap->stats().queued_frees, 0u);
  EXPECT_EQ(allocate(kMiB * 2, stream), block);
}

// A quiesce that failed: the seal ends without anybody having waited, and the order of streams still holds.
TEST_F(HeapTest, AFreeNotedWhileSealedStillWaitsForItsWork) {
  const Stream owner = new_stream();
  const Stream worker = new_stream();
  std::byte* block = allocate(kMiB * 2, owner);
  StreamGate gate;
  gate.hold(table(), worker);
  set(block, 1, kMiB * 2, worker);
  heap->seal();
  free(block, worker);
  heap->unseal();
  EXPECT_EQ(heap->stats().parked, kMiB * 2);
  EXPECT_NE(allocate(kMiB * 2, owner), block);
  gate.open();
}

TEST_F(HeapTest, ConsolidateMergesWhatStreamsKeptApart) {
  std::vector<std::byte*> blocks;
  std::vector<Stream> users;
  for (int index = 0; index < 8; ++index) {
    users.push_back(new_stream());
    blocks.push_back(allocate(kMiB, users.back()));
  }
  for (int index = 0; index < 8; ++index) {
    free(blocks[index], index % 3 == 0 ? std::nullopt : std::optional(users[index]));
  }
  heap->seal();
  EXPECT_TRUE(heap->unused_pages().empty() || heap->unused_pages()[0].count < Pages(4));
  ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  heap->consolidate(true);
  heap->check_invariants();
  const auto unused = heap->unused_pages();
  ASSERT_EQ(unused.size(), 1u);
  EXPECT_EQ(unused[0].first, Pages(0));
  EXPECT_EQ(Bytes(unused[0].count), heap->stats().backed_free);
  EXPECT_EQ(heap->stats().cached, Bytes(0));
  EXPECT_EQ(heap->stats().parked, Bytes(0));
  heap->unseal();
}

TEST_F(HeapTest, UnusedPagesCanBeTakenAwayAndComeBack) {
  const Stream stream = new_stream();
  source->most = Pages(1); // no more than is needed: 2 pages, then 3, then 1
  std::byte* first = allocate(kMiB * 3, stream);
  std::byte* second = allocate(kMiB * 6, stream);
  std::byte* third = allocate(kMiB * 3, stream);
  std::memset(first, 1, kMiB.size() * 3);
  std::memset(third, 3, kMiB.size() * 3);
  free(second, stream); // 3 to 9 MiB: pages 2 and 3 are wholly inside
  seal_quiesced();
  const auto unused = heap->unused_pages();
  ASSERT_EQ(unused.size(), 1u);
  EXPECT_EQ(unused[0], (PageRange{Pages(2), Pages(2)}));
  ASSERT_EQ(source->remove(unused[0]), (std::vector<PageRange>{unused[0]}));
  heap->note_unbacked(unused[0]);
  heap->check_invariants();
  heap->unseal();

  // 1 MiB is left before the hole and 1 MiB after it: the two pages between are all that is missing.
  const std::size_t growths = source->calls.size();
  std::byte* again = allocate(kMiB * 6, stream);
  EXPECT_EQ(again, second);
  ASSERT_EQ(source->calls.size(), growths + 1);
  EXPECT_EQ(source->calls.back().hole, (PageRange{Pages(2), Pages(2)}));
  EXPECT_EQ(source->calls.back().at_least, Pages(2));
  std::memset(again, 2, kMiB.size() * 6);
  EXPECT_TRUE(all_are(first, 1, kMiB * 3));
  EXPECT_TRUE(all_are(third, 3, kMiB * 3));

  free(again, stream);
  seal_quiesced();
  source->remove({Pages(2), Pages(2)});
  heap->note_unbacked({Pages(2), Pages(2)});
  ASSERT_TRUE(source->back({Pages(2), Pages(2)}, Pages(2), BlockKind::kShared));
  heap->note_backed({Pages(2), Pages(2)});
  heap->check_invariants();
  heap->unseal();
  const std::size_t before = source->calls.size();
  EXPECT_EQ(allocate(kMiB * 6, stream), second);
  EXPECT_EQ(source->calls.size(), before);
}

TEST_F(HeapTest, LiveBlocksAreListedInAddressOrder) {
  const Stream stream = new_stream();
  std::byte* one = allocate(kMiB * 4, stream, BlockKind::kOneHandle);
  std::byte* small = allocate(Bytes(100), stream);
  heap->seal();
  const auto blocks = heap->live_blocks();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].offset, DeviceAddress(one) - reservation.base());
  EXPECT_EQ(blocks[0].size, kMiB * 4);
  EXPECT_EQ(blocks[0].kind, BlockKind::kOneHandle);
  EXPECT_EQ(blocks[1].offset, DeviceAddress(small) - reservation.base());
  EXPECT_EQ(blocks[1].size, Bytes(512));
  heap->unseal();
}

using HeapDeathTest = HeapTest;

TEST_F(HeapDeathTest, OurOwnMistakesAbortWithBothValues) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(heap->live_blocks(), "sealed_");
  EXPECT_DEATH(
      {
        heap->seal();
        heap->note_unbacked({Pages(0), Pages(1)}); // a hole already
      },
      "kFree");
}

} // namespace
} // namespace stillwake
