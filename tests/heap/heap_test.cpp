// SPDX-License-Identifier: Apache-2.0
// Blocks: where they lie, what is refused, what is found.
#include "allocator/heap/heap.h"
#include "tests/heap/heap_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

namespace stillwake {
namespace {

TEST_F(HeapTest, BlocksAreAlignedDisjointAndWritable) {
  const Stream stream = new_stream();
  struct Taken {
    std::byte* pointer;
    std::size_t size;
  };
  std::vector<Taken> blocks;
  const std::size_t sizes[] = {1, 511, 512, 513, 4096, 100'000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20};
  for (int round = 0; round < 4; ++round) {
    for (const std::size_t size : sizes) {
      std::byte* pointer = allocate(Bytes(size), stream);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % 512, 0u);
      std::memset(pointer, static_cast<int>(blocks.size() + 1), size);
      blocks.push_back({pointer, size});
    }
  }
  heap->check_invariants();
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    EXPECT_TRUE(all_are(blocks[index].pointer, static_cast<int>(index + 1), Bytes(blocks[index].size))) << index;
  }
  EXPECT_EQ(heap->stats().live_blocks, blocks.size());
  for (const Taken& block : blocks) {
    free(block.pointer, stream);
  }
  EXPECT_EQ(heap->stats().live_blocks, 0u);
  EXPECT_EQ(heap->stats().live, Bytes(0));
}

// FR-E2, the heap's part: two heaps on one device never give out the same bytes, in use or freed.
TEST_F(HeapTest, FrE2TwoHeapsNeverShareAPage) {
  auto other_reservation = Reservation::create(*device, kMiB * 16).value();
  TestSource other_source(*device, other_reservation);
  Heap other(*device, other_reservation.base(), kMiB * 16, other_source);
  const Stream stream = new_stream();
  std::byte* mine = allocate(Bytes(1000), stream);
  auto* theirs = static_cast<std::byte*>(other.allocate(Bytes(1000), stream).value());
  EXPECT_TRUE(reservation.contains(DeviceAddress(mine)));
  EXPECT_TRUE(other_reservation.contains(DeviceAddress(theirs)));
  EXPECT_FALSE(heap->free(theirs, stream));
  EXPECT_FALSE(other.free(mine, stream));
  free(mine, stream);
  EXPECT_NE(static_cast<std::byte*>(other.allocate(Bytes(1000), stream).value()), mine);
}

TEST_F(HeapTest, AbsurdSizesAreRefusedWithTheFigures) {
  const Stream stream = new_stream();
  for (const std::uint64_t size :
       {std::uint64_t{0}, kReservation.count() + 1, ~std::uint64_t{0}, ~std::uint64_t{0} - 511}) {
    for (const BlockKind kind : {BlockKind::kShared, BlockKind::kOneHandle}) {
      const auto block = heap->allocate(Bytes(size), stream, kind);
      ASSERT_FALSE(block) << size;
      EXPECT_EQ(block.error().code, ErrorCode::kInvalidArgument);
      EXPECT_NE(block.error().message.find(std::to_string(size)), std::string::npos) << block.error().message;
    }
  }
  EXPECT_TRUE(source->calls.empty());
  heap->check_invariants();
}

TEST_F(HeapTest, OnlyTheStartOfALiveBlockCanBeFreed) {
  const Stream stream = new_stream();
  std::byte* small = allocate(Bytes(2048), stream);
  std::byte* large = allocate(kMiB * 3, stream);
  int on_the_stack = 0;
  const std::byte* base = static_cast<std::byte*>(reservation.base().pointer());
  for (const void* wrong : {static_cast<const void*>(nullptr), static_cast<const void*>(&on_the_stack),
                            static_cast<const void*>(base - 512), static_cast<const void*>(base + kReservation.size()),
                            static_cast<const void*>(base + kReservation.size() - 512), // a hole
                            static_cast<const void*>(small + 1), static_cast<const void*>(small + 512),
                            static_cast<const void*>(large + (1 << 20))}) {
    expect_free_refused(const_cast<void*>(wrong));
    expect_free_refused(const_cast<void*>(wrong), stream);
  }
  EXPECT_EQ(heap->stats().live_blocks, 2u);
  free(small, stream);
  free(large, stream);
  for (std::byte* freed : {small, large}) { // one is cached, one is free space
    expect_free_refused(freed);
    expect_free_refused(freed, stream);
  }
  heap->check_invariants();
}

TEST_F(HeapTest, FindKnowsEveryByteOfALiveBlockAndNoOther) {
  const Stream stream = new_stream();
  std::byte* block = allocate(Bytes(5000), stream);
  const Bytes offset = DeviceAddress(block) - reservation.base();
  for (const bool sealed : {false, true}) {
    if (sealed) {
      heap->seal();
    }
    for (const std::size_t at : {std::size_t{0}, std::size_t{1}, std::size_t{4999}, std::size_t{5119}}) {
      const auto found = heap->find(block + at);
      ASSERT_TRUE(found) << at;
      EXPECT_EQ(found->offset, offset);
      EXPECT_EQ(found->size, Bytes(5120)); // 5000 rounded up to 512
      EXPECT_EQ(found->kind, BlockKind::kShared);
    }
    EXPECT_FALSE(heap->find(block + 5120));
    EXPECT_FALSE(heap->find(nullptr));
    EXPECT_FALSE(heap->find(static_cast<std::byte*>(reservation.base().pointer()) - 1));
    EXPECT_FALSE(heap->find((reservation.base() + kReservation).pointer()));
  }
  heap->unseal();
  free(block, stream);
  EXPECT_FALSE(heap->find(block)); // cached, not live
}

TEST_F(HeapTest, FreesOfOneSizeFillACacheThatSpills) {
  const Stream stream = new_stream();
  std::vector<std::byte*> blocks;
  for (int index = 0; index < 3000; ++index) {
    blocks.push_back(allocate(Bytes(1024), stream));
  }
  for (std::byte* block : blocks) {
    free(block, stream);
  }
  heap->check_invariants();
  const HeapStats stats = heap->stats();
  EXPECT_LE(stats.cached, Bytes(512 * 1024)); // at most 512 blocks a stripe
  EXPECT_EQ(stats.queued_frees, 0u);
  EXPECT_EQ((stats.cached + stats.backed_free) % kPageBytes, Bytes(0)); // nothing went missing
}

// A child has no use for the device; what it calls must neither fault nor free anything of the parent.
TEST_F(HeapTest, AForkedChildSeesOnlyForeignPointers) {
  std::byte* block = allocate(Bytes(4096), nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const auto freed = heap->free(block, std::nullopt);
    _exit(!freed && freed.error().code == ErrorCode::kInvalidArgument ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  free(block, nullptr);
}

} // namespace
} // namespace stillwake
