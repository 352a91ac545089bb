// SPDX-License-Identifier: Apache-2.0
// Many threads in one heap: each byte has one owner, each block is freed once. Run under the thread sanitizer too.
#include "tests/heap/heap_fixture.h"

#include <barrier>
#include <mutex>
#include <random>

namespace stillwake {
namespace {

TEST_F(HeapTest, OfTwoThreadsThatFreeTheSameBlockExactlyOneWins) {
  const Stream stream = new_stream();
  for (const Bytes size : {Bytes(2048), kMiB * 2}) {
    for (int round = 0; round < 200; ++round) {
      std::byte* block = allocate(size, stream);
      std::atomic<int> freed{0};
      std::barrier start(2);
      const auto race = [&] {
        start.arrive_and_wait();
        freed += heap->free(block, stream) ? 1 : 0;
      };
      std::thread other(race);
      race();
      other.join();
      ASSERT_EQ(freed, 1);
    }
  }
}

TEST_F(HeapTest, SealWaitsForAGrowthUnderWay) {
  const Stream stream = new_stream();
  std::atomic<bool> sealed{false};
  std::thread sealer;
  source->on_back = [&] {
    sealer = std::thread([&] {
      heap->seal();
      sealed = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20)); // time to be wrong in; being right needs none
    EXPECT_FALSE(sealed);
  };
  allocate(kMiB, stream);
  sealer.join();
  EXPECT_EQ(heap->live_blocks().size(), 1u);
  heap->unseal();
}

/// Blocks on their way from one thread to another.
class Mailbox {
public:
  std::byte* exchange(std::byte* block) {
    const std::lock_guard lock(mutex_);
    return std::exchange(blocks_[next_++ % blocks_.size()], block);
  }
  std::vector<std::byte*> rest() { return std::exchange(blocks_, {}); }

private:
  std::mutex mutex_;
  std::vector<std::byte*> blocks_ = std::vector<std::byte*>(64);
  std::size_t next_ = 0;
};

struct Mark {
  std::uint64_t self;
  std::uint64_t size;
};

/// Writes at both ends of a block whose it is; anybody who was given the same bytes would write another mark.
void mark(std::byte* block, std::size_t size) {
  const Mark mark{reinterpret_cast<std::uintptr_t>(block), size};
  std::memcpy(block, &mark, sizeof(mark));
  std::memcpy(block + size - sizeof(mark), &mark, sizeof(mark));
}
bool is_marked(const std::byte* block) {
  Mark front;
  Mark back;
  std::memcpy(&front, block, sizeof(front));
  std::memcpy(&back, block + front.size - sizeof(back), sizeof(back));
  return front.self == reinterpret_cast<std::uintptr_t>(block) && back.self == front.self && back.size == front.size;
}

TEST_F(HeapTest, EightThreadsMixedStreamsWithSealsBetween) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 1500;
  std::vector<Stream> own;
  for (int index = 0; index < kThreads; ++index) {
    own.push_back(new_stream());
  }
  Mailbox mailbox;
  std::atomic<int> running{kThreads};
  std::atomic<int> wrong{0};
  const auto work = [&](int thread) {
    std::minstd_rand random(static_cast<unsigned>(thread + 1));
    for (int round = 0; round < kRounds; ++round) {
      const std::size_t size = random() % 20 == 0 ? 1536 * 1024 : 32 + random() % 60'000;
      const Stream stream = own[random() % own.size()];
      const auto block = heap->allocate(Bytes(size), stream);
      if (!block) {
        wrong += block.error().code == ErrorCode::kBusy ? 0 : 1;
        std::this_thread::yield();
        continue;
      }
      mark(static_cast<std::byte*>(*block), size);
      std::byte* other = mailbox.exchange(static_cast<std::byte*>(*block));
      if (other != nullptr) {
        wrong += is_marked(other) && heap->find(other + 1) ? 0 : 1;
        const unsigned how = random() % 4;
        wrong += heap->free(other, how == 0 ? std::nullopt : std::optional(own[random() % own.size()])) ? 0 : 1;
      }
    }
    --running;
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back(work, thread);
  }
  while (running != 0) {
    heap->seal();
    heap->check_invariants();
    heap->drain_queue();
    const std::vector<LiveBlock> before = heap->live_blocks();
    const std::vector<LiveBlock> after = heap->live_blocks();
    EXPECT_EQ(before.size(), after.size()); // nobody moves while sealed
    heap->consolidate(false);
    heap->unseal();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  for (std::byte* block : mailbox.rest()) {
    if (block != nullptr) {
      free(block, std::nullopt);
    }
  }
  EXPECT_EQ(heap->stats().live_blocks, 0u);
  seal_quiesced();
  EXPECT_EQ(heap->unused_pages().size(), 1u);
  heap->unseal();
}

} // namespace
} // namespace stillwake
