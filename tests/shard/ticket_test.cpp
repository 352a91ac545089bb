// SPDX-License-Identifier: Apache-2.0
// Tickets: what orders a reader behind a wake, what a verdict is, and how long a ticket lives.
#include "tests/shard/stream_work.h"

#include <atomic>

namespace stillwake {
namespace {

constexpr Bytes kSize = kMiB * 8;

class Tickets : public ShardWork {
protected:
  /// A block of pinned host memory to read into without waiting.
  class Reader {
  public:
    Reader(ShardWork& test, Device& device, Bytes size) : device_(device), size_(size) {
      auto made = PinnedBuffer::create(device, size);
      EXPECT_TRUE(made);
      buffer_ = std::move(*made);
      (void)test;
    }
    void queue(const void* from, Stream stream) {
      ContextScope scope(device_);
      EXPECT_EQ(device_.table().cuMemcpyDtoHAsync(buffer_.data(), DeviceAddress(from).value(), size_.size(), stream),
                CUDA_SUCCESS);
    }
    bool holds(std::uint64_t seed, Stream stream) {
      ContextScope scope(device_);
      EXPECT_EQ(device_.table().cuStreamSynchronize(stream), CUDA_SUCCESS);
      const auto wanted = content(seed, size_);
      return std::equal(wanted.begin(), wanted.end(), reinterpret_cast<const std::uint64_t*>(buffer_.data()));
    }

  private:
    Device& device_;
    Bytes size_;
    PinnedBuffer buffer_;
  };

  void slow_bus(Bytes per_second) {
    if (emulated()) {
      emulation().set_bandwidth(per_second);
    }
  }
};

TEST_F(Tickets, ANamedStreamWaitsByItselfAndAnotherThroughTheTicket) {
  Shard shard = make_shard();
  OwnedStream named = make_stream();
  OwnedStream other = make_stream();
  OwnedStream careless = make_stream();
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  Reader first(*this, device(), kSize), second(*this, device(), kSize), third(*this, device(), kSize);
  ASSERT_OK(sleep({&shard}));
  if (emulated()) {
    emulation().set_stream_delay(std::chrono::milliseconds(200));
  }
  auto ticket = wake({&shard}, {named.get()});
  ASSERT_OK(ticket);
  if (emulated()) {
    EXPECT_EQ(shard.state(), ShardState::kWaking);
    EXPECT_FALSE(ticket->is_done());
    emulation().set_stream_delay(Duration(0)); // of what is queued from here on
#ifndef __SANITIZE_THREAD__                    // which would be right to complain
    third.queue(block, careless.get());
    EXPECT_FALSE(third.holds(1, careless.get())) << "a missing wait does not show: this test proves nothing";
#endif
  }
  first.queue(block, named.get());
  ASSERT_OK(ticket->wait(other.get(), block, kSize));
  second.queue(block, other.get());
  EXPECT_TRUE(first.holds(1, named.get()));
  EXPECT_TRUE(second.holds(1, other.get()));
  ASSERT_OK(ticket->result());
  EXPECT_TRUE(ticket->is_done());
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  EXPECT_OK(ticket->wait(careless.get())); // nothing, once it is done
}

TEST_F(Tickets, WhatIsWantedFirstIsReadyFirst) {
  if (!emulated()) {
    GTEST_SKIP() << "needs a bus slow enough to see one chunk before the other";
  }
  Shard shard = make_shard();
  constexpr Bytes kPart = kMiB * 64; // a chunk each
  auto* block = static_cast<std::byte*>(allocate(shard, kPart * 2));
  fill(block, 1, kPart * 2);
  const auto whole = content(1, kPart * 2);
  ASSERT_OK(sleep({&shard}));
  WakeOptions options;
  options.chunk = kPart;
  options.first = {{block + kPart.size(), kPart}};
  emulation().set_bandwidth(kMiB * 128);
  OwnedStream stream = make_stream();
  auto ticket = wake({&shard}, std::vector<Stream>(), options);
  ASSERT_OK(ticket);
  ASSERT_OK(ticket->wait(stream.get(), block + kPart.size(), kPart));
  ASSERT_OK(stream.synchronize());
  EXPECT_FALSE(ticket->is_done()) << "the second half was waited for together with the first";
  // The emulated device's memory is memory at the same address.
  EXPECT_TRUE(std::equal(whole.begin() + (kPart / 8).size(), whole.end(),
                         reinterpret_cast<const std::uint64_t*>(block + kPart.size())));
  ASSERT_OK(ticket->result());
  EXPECT_TRUE(holds(block, 1, kPart * 2));
}

TEST_F(Tickets, WhoAsksIsNotHeldUpByWhoWaits) {
  if (!emulated()) {
    GTEST_SKIP() << "needs a bus so slow that there is time to ask";
  }
  Shard shard = make_shard();
  constexpr Bytes kLarge = kMiB * 64;
  void* block = allocate(shard, kLarge);
  fill(block, 1, kLarge);
  ASSERT_OK(sleep({&shard}));
  emulation().set_bandwidth(kLarge);
  OwnedStream stream = make_stream();
  auto ticket = wake({&shard}, std::vector<Stream>());
  ASSERT_OK(ticket);
  std::atomic<bool> known{false};
  std::thread waits([&] {
    EXPECT_OK(ticket->result());
    known = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(ticket->is_done());
  EXPECT_EQ(shard.state(), ShardState::kWaking);
  EXPECT_OK(ticket->wait(stream.get()));
  EXPECT_OK(ticket->wait(stream.get(), block, kLarge));
  EXPECT_FALSE(known) << "all of these waited for the wake, or were too late to ask";
  waits.join();
  EXPECT_TRUE(holds(block, 1, kLarge));
}

TEST_F(Tickets, RangesThatAreWantedFirstMayOverlapAndRepeat) {
  Shard shard = make_shard();
  Shard other = make_shard("other");
  auto* block = static_cast<std::byte*>(allocate(shard, kSize));
  void* in_other = allocate(other, kSize);
  fill(block, 1, kSize);
  fill(in_other, 2, kSize);
  ASSERT_OK(sleep({&shard, &other}));
  WakeOptions options;
  options.first = {{in_other, Bytes(1)},
                   {block + kMiB.size() * 5, kMiB * 3},
                   {block + 100, kSize - Bytes(200)},
                   {block, kSize},
                   {block, shard.stats().reserved_addresses}};
  ASSERT_OK(wake({&shard, &other}, options));
  EXPECT_TRUE(holds(block, 1, kSize));
  EXPECT_TRUE(holds(in_other, 2, kSize));
}

TEST_F(Tickets, ARangeOutsideOfTheWokenShardsIsRefused) {
  Shard shard = make_shard();
  auto* block = static_cast<std::byte*>(allocate(shard, kSize));
  ASSERT_OK(sleep({&shard}));
  auto ticket = wake({&shard}, std::vector<Stream>());
  ASSERT_OK(ticket);
  for (int round = 0; round < 2; ++round) { // under way, or over
    EXPECT_CODE(ticket->wait(nullptr, &shard, Bytes(8)), ErrorCode::kInvalidArgument);
    EXPECT_CODE(ticket->wait(nullptr, nullptr, Bytes(8)), ErrorCode::kInvalidArgument);
    EXPECT_CODE(ticket->wait(nullptr, block, Bytes(0)), ErrorCode::kInvalidArgument);
    EXPECT_CODE(ticket->wait(nullptr, block, Bytes(~std::uint64_t{0})), ErrorCode::kInvalidArgument);
    EXPECT_OK(ticket->wait(nullptr, block + 5, Bytes(1)));
    ASSERT_OK(ticket->result());
  }
}

TEST_F(Tickets, ARangeOfAShardThatWasAwakeAlreadyIsReady) {
  Shard shard = make_shard();
  Shard awake = make_shard("awake");
  auto* block = static_cast<std::byte*>(allocate(shard, kSize));
  auto* in_awake = static_cast<std::byte*>(allocate(awake, kSize));
  fill(in_awake, 2, kSize);
  OwnedStream stream = make_stream();
  ASSERT_OK(sleep({&shard}));
  slow_bus(kMiB * 64);
  auto ticket = wake({&shard, &awake}, std::vector<Stream>());
  ASSERT_OK(ticket);
  for (int round = 0; round < 2; ++round) { // under way, or over
    const std::uint64_t waits = gate().calls(CallId::cuStreamWaitEvent);
    EXPECT_OK(ticket->wait(stream.get(), in_awake, kSize));
    EXPECT_OK(ticket->wait(stream.get(), in_awake + 5, Bytes(1)));
    EXPECT_EQ(gate().calls(CallId::cuStreamWaitEvent), waits) << "there is nothing to wait for";
    EXPECT_CODE(ticket->wait(stream.get(), in_awake, Bytes(0)), ErrorCode::kInvalidArgument);
    EXPECT_CODE(ticket->wait(stream.get(), in_awake, Bytes(~std::uint64_t{0})), ErrorCode::kInvalidArgument);
    EXPECT_OK(ticket->wait(stream.get(), block, kSize));
    ASSERT_OK(ticket->result());
  }
  // A set in which nothing had to wake has ready ranges only.
  auto nothing = wake({&shard, &awake}, std::vector<Stream>());
  ASSERT_OK(nothing);
  EXPECT_OK(nothing->wait(stream.get(), block, kSize));
  EXPECT_CODE(nothing->wait(stream.get(), &shard, Bytes(8)), ErrorCode::kInvalidArgument);
}

TEST_F(Tickets, AStreamOfAnotherDeviceIsRefused) {
  if (driver_->device_count() < 2) {
    GTEST_SKIP() << "needs two devices";
  }
  Shard shard = make_shard();
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  OwnedStream foreign = make_stream(1);
  ASSERT_OK(sleep({&shard}));
  EXPECT_CODE(wake({&shard}, {foreign.get()}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(shard.state(), ShardState::kAsleep);
  slow_bus(kMiB * 16);
  auto ticket = wake({&shard}, std::vector<Stream>());
  ASSERT_OK(ticket);
  EXPECT_CODE(ticket->wait(foreign.get()), ErrorCode::kInvalidArgument);
  EXPECT_CODE(ticket->wait(foreign.get(), block, kSize), ErrorCode::kInvalidArgument);
  ASSERT_OK(ticket->result());
}

TEST_F(Tickets, AStreamThatCouldNotBeMadeToWaitMeansThatNothingWoke) {
  Shard shard = make_shard();
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  OwnedStream one = make_stream();
  OwnedStream two = make_stream();
  ASSERT_OK(sleep({&shard}));
  const std::uint64_t before = gate().calls(CallId::cuStreamWaitEvent);
  ASSERT_OK(wake({&shard}, {one.get(), two.get()}));
  const std::uint64_t waits = gate().calls(CallId::cuStreamWaitEvent) - before;
  ASSERT_OK(wake({&shard}));
  ASSERT_OK(sleep({&shard}));
  const Bytes free = free_memory();
  slow_bus(kMiB * 64); // on a fast one the wake is over before the second stream would have to wait
  fail(CallId::cuStreamWaitEvent, waits);
  EXPECT_CODE(wake({&shard}, {one.get(), two.get()}), ErrorCode::kDriverCallFailed);
  heal();
  EXPECT_EQ(shard.state(), ShardState::kAsleep);
  EXPECT_EQ(free_memory(), free);
  slow_bus(Bytes(0));
  ASSERT_OK(wake({&shard}, {one.get(), two.get()}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 1, kSize));
}

TEST_F(Tickets, ACapturingStreamIsRefused) {
  Shard shard = make_shard();
  allocate(shard, kSize);
  OwnedStream stream = make_stream();
  ASSERT_OK(sleep({&shard}));
  slow_bus(kMiB * 16);
  ContextScope scope(device());
  ASSERT_EQ(table().cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_CODE(wake({&shard}, {stream.get()}), ErrorCode::kBusy);
  EXPECT_EQ(shard.state(), ShardState::kAsleep);
  auto ticket = wake({&shard}, std::vector<Stream>());
  ASSERT_OK(ticket);
  const auto waited = ticket->wait(stream.get());
  EXPECT_TRUE(!emulated() || !waited) << "the wait was recorded";
  EXPECT_TRUE(waited || waited.error().code == ErrorCode::kBusy);
  CUgraph graph = nullptr;
  EXPECT_EQ(table().cuStreamEndCapture(stream.get(), &graph), CUDA_SUCCESS) << "the capture was broken";
  EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
  ASSERT_OK(ticket->result());
}

TEST_F(Tickets, AStrictCaptureOfAnotherStreamSurvivesAWakeAndTheQuestionsAboutIt) {
  Shard shard = make_shard();
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  OwnedStream captures = make_stream();
  OwnedStream works = make_stream();
  ASSERT_OK(sleep({&shard}));
  slow_bus(kMiB * 64);
  CUgraph graph = nullptr;
  {
    ContextScope scope(device());
    // Any call of any thread that might hinder such a capture spoils it.
    ASSERT_EQ(table().cuStreamBeginCapture(captures.get(), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  }
  const auto ask = [&] {
    auto ticket = wake({&shard}, std::vector<Stream>());
    ASSERT_OK(ticket);
    (void)ticket->is_done();
    (void)shard.state();
    EXPECT_OK(shard.allocate(kMiB * 4, works.get())); // waits for the wake, on its stream
    EXPECT_OK(ticket->wait(works.get(), block, kSize));
    ASSERT_OK(ticket->result());
    EXPECT_EQ(shard.state(), ShardState::kAwake);
  };
  std::thread(ask).join();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  ContextScope scope(device());
  EXPECT_EQ(table().cuStreamIsCapturing(captures.get(), &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE) << "the capture was broken";
  EXPECT_EQ(table().cuStreamEndCapture(captures.get(), &graph), CUDA_SUCCESS);
  if (graph != nullptr) {
    EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  EXPECT_EQ(table().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << "the caller's mode is what it was";
  EXPECT_TRUE(holds(block, 1, kSize));
}

TEST_F(Tickets, ATicketOutlivesItsShardAndTellsTheSameAgain) {
  std::optional<Ticket> copy;
  void* address = nullptr;
  OwnedStream stream = make_stream();
  {
    Shard shard = make_shard();
    address = allocate(shard, kSize);
    fill(address, 1, kSize);
    ASSERT_OK(sleep({&shard}));
    slow_bus(kMiB * 64);
    auto ticket = wake({&shard}, {stream.get()});
    ASSERT_OK(ticket);
    copy = *ticket;
  } // waits for its wake
  EXPECT_TRUE(copy->is_done());
  auto first = copy->result();
  ASSERT_OK(first);
  auto second = copy->result();
  ASSERT_OK(second);
  EXPECT_EQ(first->copied, kSize);
  EXPECT_EQ(first->line(), second->line());
  EXPECT_OK(copy->wait(stream.get()));
  EXPECT_OK(copy->wait(stream.get(), address, kSize));
}

TEST_F(Tickets, ATicketThatNobodyAsksIsSettledByTheShard) {
  Shard shard = make_shard();
  void* block = allocate(shard, kSize);
  fill(block, 1, kSize);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}, std::vector<Stream>()));
  while (shard.state() == ShardState::kWaking) {
    std::this_thread::yield();
  }
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  ASSERT_OK(sleep({&shard}));
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 1, kSize));
}

TEST_F(Tickets, ACorruptedHostCopyIsNamedTheShardRefusesToSleepAndItsBackingIsKept) {
  ShardOptions options;
  options.name = "damaged";
  options.host_copy = HostCopy::kReadable;
  Shard shard = make_shard(options);
  Shard sound = make_shard("sound");
  auto* block = static_cast<std::byte*>(allocate(shard, kSize));
  void* in_sound = allocate(sound, kSize);
  fill(block, 1, kSize);
  fill(in_sound, 2, kSize);
  ASSERT_OK(sleep({&shard, &sound}));
  const Bytes pinned = shard.stats().host_pinned;
  for (std::size_t page : {1, 3}) {
    **shard.host_address(block + kPageBytes.size() * page + 99) ^= std::byte{0x80};
  }
  auto ticket = wake({&shard, &sound}, {nullptr});
  ASSERT_OK(ticket);
  for (int again = 0; again < 2; ++again) {
    auto verdict = ticket->result();
    EXPECT_CODE(verdict, ErrorCode::kCorrupted);
    const std::string& text = verdict.error().message;
    EXPECT_NE(text.find("'damaged'"), std::string::npos) << text;
    EXPECT_NE(text.find("2 pages"), std::string::npos) << text;
    EXPECT_NE(text.find("1, 3"), std::string::npos) << text;
  }
  EXPECT_EQ(shard.state(), ShardState::kCorrupted);
  EXPECT_CODE(sleep({&shard}), ErrorCode::kCorrupted);
  EXPECT_CODE(sleep({&sound, &shard}), ErrorCode::kCorrupted);
  EXPECT_EQ(shard.stats().host_pinned, pinned);
  EXPECT_EQ(*shard.trim(), Bytes(0));
  EXPECT_TRUE(holds(in_sound, 2, kSize)) << "the other shard of the set";
  EXPECT_EQ(sound.state(), ShardState::kAwake);
  ASSERT_OK(sleep({&sound}));
  const std::lock_guard<std::mutex> lock(log_mutex_);
  EXPECT_EQ(std::count_if(log_.begin(), log_.end(),
                          [](const std::string& line) { return line.find("'damaged'") != std::string::npos; }),
            1);
}

} // namespace
} // namespace stillwake
