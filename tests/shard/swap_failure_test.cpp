// SPDX-License-Identifier: Apache-2.0
// Swaps that fail in the middle: what went out comes back into place, what came in is asleep with its backing.
#include "tests/shard/swap_fixture.h"

namespace stillwake {
namespace {

class SwapFailure : public SwapTest {
protected:
  /// Fails the first, second, fourth, seventh, ... of each call while a swap makes them; how many places that were.
  int fail_at_many_places(const std::vector<CallId>& calls) {
    int places = 0;
    for (CallId call : calls) {
      bool injected = true;
      for (std::uint64_t nth = 1; injected; nth += 1 + nth / 2) {
        SCOPED_TRACE(std::string(to_string(call)) + " " + std::to_string(nth));
        out_.blocks[0].seed = ++seeds_; // so that a stale backing shows
        fill(out_.blocks[0].at, seeds_, out_.blocks[0].size);
        fail(call, nth);
        auto swapped = swap({&*out_.shard}, {&*in_.shard});
        injected = gate().injected() > 0;
        heal();
        places += injected ? 1 : 0;
        if (swapped) { // a release that failed is tried again later, or no call was left
          EXPECT_TRUE(is_exact(in_));
          EXPECT_OK(swap({&*in_.shard}, {&*out_.shard}));
          EXPECT_TRUE(is_exact(out_));
        } else {
          expect_put_back();
        }
        if (HasFailure()) {
          return places;
        }
      }
    }
    return places;
  }
  void expect_that_it_works_after_all() {
    heal();
    ASSERT_OK(swap({&*out_.shard}, {&*in_.shard}));
    EXPECT_TRUE(is_exact(in_));
    ASSERT_OK(swap({&*in_.shard}, {&*out_.shard}));
    EXPECT_TRUE(is_exact(out_));
  }
};

TEST_F(SwapFailure, AFailureOfAnyCallAtManyPlacesPutsEverythingBack) {
  ASSERT_OK(set_pinning_threads(*driver_, 1));
  set_up({kMiB * 10, kMiB * 4, kMiB * 6}, {kMiB * 6, kMiB * 2, kMiB * 14});
  expect_that_it_works_after_all();
  const int places = fail_at_many_places(
      {CallId::cuMemCreate, CallId::cuMemMap, CallId::cuMemSetAccess, CallId::cuMemUnmap, CallId::cuMemRelease,
       CallId::cuMemcpyDtoHAsync, CallId::cuMemcpyHtoDAsync, CallId::cuStreamWaitEvent, CallId::cuEventRecord,
       CallId::cuLaunchKernel, CallId::cuStreamSynchronize, CallId::cuEventSynchronize});
  RecordProperty("places", places);
  EXPECT_GE(places, 15);
  expect_that_it_works_after_all();
}

TEST_F(SwapFailure, AFailureWhenOneBatchHasLeftAndTheNextHasNotPutsEverythingBack) {
  set_up({kMiB * 90, kMiB * 44, kMiB * 4}, {kMiB * 20, kMiB * 4, kMiB * 30});
  EXPECT_GT(fail_at_many_places({CallId::cuMemUnmap, CallId::cuMemcpyDtoHAsync}), 3);
  expect_that_it_works_after_all();
}

TEST_F(SwapFailure, PinningThatFailsLateCostsNothing) {
  // Nothing is prepared: a late piece cannot be pinned, when earlier ones may be all that is left of their pages.
  ASSERT_OK(set_pinning_threads(*driver_, 1));
  for (std::uint64_t nth : {1, 4}) {
    std::vector<Bytes> layers(50, kMiB * 4);
    set_up(layers, {kMiB * 8});
    fail(CallId::cuMemHostRegister, nth, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_CODE(swap({&*out_.shard}, {&*in_.shard}), ErrorCode::kOutOfHostMemory);
    heal();
    expect_put_back();
    expect_that_it_works_after_all();
    out_.shard.reset();
    in_.shard.reset();
    out_.blocks.clear();
    in_.blocks.clear();
  }
}

TEST_F(SwapFailure, IncomingBackingThatIsDamagedPutsTheOutgoingSetBack) {
  ShardOptions options;
  options.name = "incoming";
  options.host_copy = HostCopy::kReadable;
  in_.shard.emplace(make_shard(options));
  add(in_, kMiB * 12);
  ASSERT_OK(sleep({&*in_.shard}));
  out_.shard.emplace(make_shard("outgoing"));
  add(out_, kMiB * 20);
  std::byte* byte = *in_.shard->host_address(static_cast<std::byte*>(in_.blocks[0].at) + (kMiB * 5).size());
  *byte ^= std::byte{4};
  auto swapped = swap({&*out_.shard}, {&*in_.shard});
  EXPECT_CODE(swapped, ErrorCode::kCorrupted);
  EXPECT_NE(swapped.error().message.find("'incoming'"), std::string::npos) << swapped.error().message;
  expect_put_back();
  *byte ^= std::byte{4}; // the backing was kept: repaired, it comes in
  expect_that_it_works_after_all();
}

TEST_F(SwapFailure, WithoutRoomForTheLargerSetNothingHappens) {
  open(1, kMiB * 64);
  set_up({kMiB * 10}, {kMiB * 30});
  auto neighbour = neighbour_leaving(Pages(5));
  const Bytes free = free_memory();
  EXPECT_CODE(swap({&*out_.shard}, {&*in_.shard}), ErrorCode::kOutOfDeviceMemory);
  expect_put_back();
  EXPECT_EQ(free_memory(), free);
  neighbour.clear();
  expect_that_it_works_after_all();
}

TEST_F(SwapFailure, WithoutHostMemoryForTheOutgoingSetNothingHappens) {
  set_up({kMiB * 10}, {kMiB * 30});
  set_host_budget(*driver_, kMiB * 32);
  EXPECT_CODE(swap({&*out_.shard}, {&*in_.shard}), ErrorCode::kOverBudget);
  expect_put_back();
  set_host_budget(*driver_, std::nullopt);
  expect_that_it_works_after_all();
}

TEST_F(SwapFailure, WhatASwapCannotMeanIsRefused) {
  set_up({kMiB * 2}, {kMiB * 2});
  EXPECT_CODE(swap({}, {&*in_.shard}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(swap({&*out_.shard}, {}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(swap({&*out_.shard}, {&*out_.shard}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(swap({&*out_.shard, nullptr}, {&*in_.shard}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(swap({&*out_.shard}, {&*in_.shard, &*in_.shard}), ErrorCode::kInvalidArgument);
  WakeOptions options;
  options.chunk = kMiB;
  EXPECT_CODE(swap({&*out_.shard}, {&*in_.shard}, {}, options), ErrorCode::kInvalidArgument);
  expect_put_back();
  expect_that_it_works_after_all();
}

TEST_F(SwapFailure, WorkThatIsNotDoneInTimeLeavesBothAsTheyWere) {
  if (!device().features().context_event) {
    GTEST_SKIP() << "this driver cannot be waited for with a time limit";
  }
  set_up({kMiB * 2}, {kMiB * 2});
  OwnedStream stream = make_stream();
  {
    StreamGate gate;
    hold(gate, stream.get());
    SleepOptions options;
    options.timeout = std::chrono::milliseconds(30);
    EXPECT_CODE(swap({&*out_.shard}, {&*in_.shard}, options), ErrorCode::kTimedOut);
  }
  ASSERT_OK(stream.synchronize());
  expect_put_back();
  expect_that_it_works_after_all();
}

} // namespace
} // namespace stillwake
