// SPDX-License-Identifier: Apache-2.0
// A swap does what the options of its two halves say: checked, first, the time to wait for memory, and the owners who
// are asked before it fails for lack of it.
#include "tests/shard/swap_fixture.h"

#include <atomic>
#include <functional>

namespace stillwake {
namespace {

using std::chrono::milliseconds;

/// Does something once, right after a copy out of the shard was queued: its pages were hashed by then.
class AfterACopyOut {
public:
  AfterACopyOut(DriverTable& table, const Shard& shard, std::function<void(CUstream)> then)
      : table_(table), shard_(shard), real_(table.cuMemcpyDtoHAsync), then_(std::move(then)) {
    table_.cuMemcpyDtoHAsync.bind_method<&AfterACopyOut::call>(table_.gate, CallId::cuMemcpyDtoHAsync, *this);
  }
  ~AfterACopyOut() { table_.cuMemcpyDtoHAsync = real_; }
  CUresult call(void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
    const CUresult result = real_(to, from, size, stream);
    if (shard_.contains(DeviceAddress(from).pointer()) && !over_.exchange(true)) {
      then_(stream);
    }
    return result;
  }

private:
  DriverTable& table_;
  const Shard& shard_;
  decltype(DriverTable::cuMemcpyDtoHAsync) real_;
  std::function<void(CUstream)> then_;
  std::atomic<bool> over_{false};
};

/// Notes where copies in go, in order.
class CopiesIn {
public:
  explicit CopiesIn(DriverTable& table) : table_(table), real_(table.cuMemcpyHtoDAsync) {
    table_.cuMemcpyHtoDAsync.bind_method<&CopiesIn::call>(table_.gate, CallId::cuMemcpyHtoDAsync, *this);
  }
  ~CopiesIn() { table_.cuMemcpyHtoDAsync = real_; }
  CUresult call(CUdeviceptr to, const void* from, std::size_t size, CUstream stream) {
    copies.emplace_back(DeviceAddress(to), Bytes(size));
    return real_(to, from, size, stream);
  }
  std::vector<std::pair<DeviceAddress, Bytes>> copies;

private:
  DriverTable& table_;
  decltype(DriverTable::cuMemcpyHtoDAsync) real_;
};

/// An owner with a cache of device memory.
class CachingOwner : public ShardOwner {
public:
  bool memory_is_short(DeviceIndex, Bytes needed) override {
    ++asked;
    last_needed = needed;
    const bool gives = gives_anyway || !cache.empty();
    cache.clear();
    return gives;
  }
  std::vector<Physical> cache;
  bool gives_anyway = false;
  int asked = 0;
  Bytes last_needed;
};

class SwapOptions : public SwapTest {
protected:
  Shard awake_with(CachingOwner& owner) {
    ShardOptions options;
    options.name = "training";
    options.owner = &owner;
    return make_shard(options); // no part of the swap
  }
  /// Swaps while somebody writes one byte of the outgoing set's first page, after it was saved.
  Result<Report> swap_while_written(bool checked) {
    // On the copy's own stream, so that it comes after it and races with nothing.
    AfterACopyOut writer(table(), *out_.shard, [&](CUstream stream) {
      queue_fill(static_cast<std::byte*>(out_.blocks[0].at) + 1000, Bytes(1), 0xff, stream);
    });
    SleepOptions options;
    options.checked = checked;
    return swap({&*out_.shard}, {&*in_.shard}, options);
  }
};

TEST_F(SwapOptions, CheckedAWriteDuringTheSwapIsFoundBeforeAnythingIsUnmapped) {
  set_up({kMiB * 6, kMiB * 140}, {kMiB * 8}); // two batches
  const std::uint64_t unmapped = gate().calls(CallId::cuMemUnmap);
  auto swapped = swap_while_written(true);
  EXPECT_CODE(swapped, ErrorCode::kBusy);
  EXPECT_NE(swapped.error().message.find("page 0 of shard 'outgoing'"), std::string::npos) << swapped.error().message;
  EXPECT_EQ(gate().calls(CallId::cuMemUnmap), unmapped);
  EXPECT_EQ(out_.shard->state(), ShardState::kAwake);
  EXPECT_EQ(in_.shard->state(), ShardState::kAsleep);
  auto expected = content(out_.blocks[0].seed, out_.blocks[0].size);
  reinterpret_cast<unsigned char*>(expected.data())[1000] = 0xff;
  EXPECT_TRUE(read(out_.blocks[0].at, out_.blocks[0].size) == expected);
  EXPECT_TRUE(holds(out_.blocks[1].at, out_.blocks[1].seed, out_.blocks[1].size));
  // Nobody writes now.
  SleepOptions options;
  options.checked = true;
  ASSERT_OK(swap({&*out_.shard}, {&*in_.shard}, options));
  EXPECT_TRUE(is_exact(in_));
  ASSERT_OK(swap({&*in_.shard}, {&*out_.shard}, options));
  EXPECT_TRUE(read(out_.blocks[0].at, out_.blocks[0].size) == expected);
}

TEST_F(SwapOptions, UncheckedASwapTakesTheContractsWordForIt) {
  set_up({kMiB * 6}, {kMiB * 8});
  ASSERT_OK(swap_while_written(false));
  EXPECT_TRUE(is_exact(in_));
}

TEST_F(SwapOptions, CheckedItWaitsForWorkWithTheTimeOfTheSleep) {
  if (!device().features().context_event) {
    GTEST_SKIP() << "this driver cannot be waited for with a time limit";
  }
  set_up({kMiB * 6}, {kMiB * 8});
  OwnedStream stream = make_stream();
  StreamGate gate;
  SleepOptions options;
  options.checked = true;
  options.timeout = milliseconds(50);
  {
    AfterACopyOut writer(table(), *out_.shard,
                         [&](CUstream) { hold(gate, stream.get()); }); // work that begins in the middle
    EXPECT_CODE(swap({&*out_.shard}, {&*in_.shard}, options), ErrorCode::kTimedOut);
  }
  gate.open();
  ASSERT_OK(stream.synchronize());
  expect_put_back();
}

TEST_F(SwapOptions, WhatIsWantedFirstComesInFirst) {
  for (const bool with_margin : {true, false}) {
    SCOPED_TRACE(with_margin);
    set_up({kMiB * 24, kMiB * 24}, {kMiB * 12, kMiB * 12, kMiB * 12});
    std::vector<Physical> neighbour;
    if (!with_margin) { // then each page comes in on what has left
      neighbour = neighbour_leaving(Pages(0));
    }
    WakeOptions options;
    auto* last = static_cast<std::byte*>(in_.blocks[2].at);
    options.first = {{last + (kMiB * 4).size(), kMiB * 4}, {in_.blocks[1].at, kMiB * 2}};
    CopiesIn seen(table());
    ASSERT_OK(swap({&*out_.shard}, {&*in_.shard}, {}, options));
    EXPECT_TRUE(is_exact(in_));
    // Blocks may share pages: whole pages come in.
    for (const WakeFirst& wanted : options.first) {
      const DeviceAddress base = in_.shard->core().reservation().base();
      const DeviceAddress begin = base + Bytes(pages_below(DeviceAddress(wanted.pointer) - base));
      const DeviceAddress end = base + Bytes(pages_holding(DeviceAddress(wanted.pointer) - base + wanted.size));
      for (DeviceAddress at = begin; at < end;) {
        ASSERT_FALSE(seen.copies.empty());
        EXPECT_EQ(seen.copies.front().first, at);
        at = at + seen.copies.front().second;
        EXPECT_LE(at, end);
        seen.copies.erase(seen.copies.begin());
      }
    }
    EXPECT_FALSE(seen.copies.empty());
    in_.shard.reset();
    out_.shard.reset();
    in_.blocks.clear();
    out_.blocks.clear();
  }
}

TEST_F(SwapOptions, WithATimeoutItWaitsForWhatTheOutgoingSetDoesNotLeave) {
  open(1, kMiB * 64);
  set_up({kMiB * 10}, {kMiB * 30});
  auto neighbour = neighbour_leaving(Pages(5));
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(200));
    neighbour.clear();
  });
  WakeOptions options;
  options.timeout = std::chrono::seconds(20);
  auto swapped = swap({&*out_.shard}, {&*in_.shard}, {}, options);
  late.join();
  ASSERT_OK(swapped);
  EXPECT_GE(swapped->took, milliseconds(150));
  EXPECT_TRUE(is_exact(in_));
}

TEST_F(SwapOptions, ATimeoutThatEndsLeavesBothAsTheyWereAndNothingIsHeldMeanwhile) {
  open(1, kMiB * 64);
  set_up({kMiB * 10}, {kMiB * 30});
  auto neighbour = neighbour_leaving(Pages(5));
  const Bytes free = free_memory();
  std::atomic<bool> over{false};
  std::thread swapper([&] {
    WakeOptions options;
    options.timeout = milliseconds(150);
    auto swapped = swap({&*out_.shard}, {&*in_.shard}, {}, options);
    over = true;
    EXPECT_CODE(swapped, ErrorCode::kTimedOut);
    EXPECT_NE(swapped.error().message.find(exact(kMiB * 20)), std::string::npos) << swapped.error().message;
  });
  int all_free = 0;
  while (!over) {
    all_free += free_memory() == free ? 1 : 0;
  }
  swapper.join();
  EXPECT_GT(all_free, 0);
  EXPECT_EQ(free_memory(), free);
  expect_put_back();
}

TEST_F(SwapOptions, OwnersAreAskedForMemoryBeforeASwapFails) {
  open(1, kMiB * 64);
  CachingOwner owner;
  Shard training = awake_with(owner);
  set_up({kMiB * 10}, {kMiB * 30});
  owner.cache = neighbour_leaving(Pages(5));
  ASSERT_OK(swap({&*out_.shard}, {&*in_.shard}));
  EXPECT_EQ(owner.asked, 1);
  EXPECT_EQ(owner.last_needed, kMiB * 20) << "what the outgoing set does not leave";
  EXPECT_TRUE(is_exact(in_));
}

TEST_F(SwapOptions, AnOwnerWithNothingToGiveIsAskedOnceAndTheSwapFails) {
  open(1, kMiB * 64);
  CachingOwner owner;
  Shard training = awake_with(owner);
  set_up({kMiB * 10}, {kMiB * 30});
  auto neighbour = neighbour_leaving(Pages(5));
  EXPECT_CODE(swap({&*out_.shard}, {&*in_.shard}), ErrorCode::kOutOfDeviceMemory);
  EXPECT_EQ(owner.asked, 1);
  expect_put_back();
}

TEST_F(SwapOptions, MemoryThatANeighbourTakesInTheMiddleIsAskedForAsWell) {
  // A block on one handle needs a new handle once small ones have left. Its creation is refused more often from turn to
  // turn, until nothing in hand is left to be given up for it.
  CachingOwner owner;
  owner.gives_anyway = true;
  Shard training = awake_with(owner);
  for (std::uint64_t refusals = 1; owner.asked == 0; ++refusals) {
    ASSERT_LT(refusals, 20u) << "no refusal ends a swap: this test proves nothing";
    for (Side* side : {&in_, &out_}) { // a swap leaves a handle of the right size in the other set
      side->blocks.clear();
      side->shard.reset();
      side->shard.emplace(make_shard("taking turns"));
    }
    add(in_, kMiB * 20, BlockKind::kOneHandle);
    ASSERT_OK(sleep({&*in_.shard}));
    for (int i = 0; i < 8; ++i) {
      add(out_, kMiB * 3);
    }
    auto neighbour = neighbour_leaving(Pages(0));
    std::vector<Fault> faults;
    for (std::uint64_t nth = 2; nth < 2 + refusals; ++nth) { // the first is for the margin
      faults.push_back({CallId::cuMemCreate, nth, CUDA_ERROR_OUT_OF_MEMORY, false});
    }
    gate().arm(faults);
    auto swapped = swap({&*out_.shard}, {&*in_.shard});
    heal();
    ASSERT_OK(swapped);
    EXPECT_TRUE(is_exact(in_));
    neighbour.clear();
    ASSERT_OK(swap({&*in_.shard}, {&*out_.shard}));
    EXPECT_TRUE(is_exact(out_));
  }
  EXPECT_EQ(owner.asked, 1);
  EXPECT_EQ(owner.last_needed, kMiB * 20);
}

} // namespace
} // namespace stillwake
