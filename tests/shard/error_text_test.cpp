// SPDX-License-Identifier: Apache-2.0
// What a sentence must say so that its reader need not guess: which address, which stream, how many bytes, whether it
// was injected.
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

class ErrorText : public ShardWork {
protected:
  template <class Answer> void expect_says(const Answer& answer, ErrorCode code, const std::string& text) {
    EXPECT_CODE(answer, code);
    EXPECT_NE(answer.error().describe().find(text), std::string::npos) << answer.error().describe();
  }
};

TEST_F(ErrorText, AddressesAreHexadecimal) {
  ShardOptions options;
  options.name = "readable";
  options.host_copy = HostCopy::kReadable;
  Shard shard = make_shard(options);
  allocate(shard, kMiB);
  void* const wrong = reinterpret_cast<void*>(0xabcdef0000);
  expect_says(shard.free(wrong), ErrorCode::kInvalidArgument, "0xabcdef0000");
  ASSERT_OK(sleep({&shard}));
  expect_says(shard.host_address(wrong), ErrorCode::kInvalidArgument, "0xabcdef0000");
  expect_says(shard.mark_host_dirty(wrong, kMiB), ErrorCode::kInvalidArgument, "0xabcdef0000");
  auto ticket = wake({&shard}, std::vector<Stream>());
  ASSERT_OK(ticket);
  expect_says(ticket->wait(nullptr, wrong, kMiB), ErrorCode::kInvalidArgument, "0xabcdef0000");
  ASSERT_OK(ticket->result());
}

TEST_F(ErrorText, AStreamThatIsNoneIsNamedWithTheCall) {
  if (!emulated()) {
    GTEST_SKIP() << "the driver of a GPU crashes when it is asked about one";
  }
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 4);
  fill(block, 1, kMiB * 4);
  const auto none = reinterpret_cast<Stream>(0xfeed0);
  expect_says(shard.allocate(kMiB, none), ErrorCode::kInvalidArgument, "allocating: 0xfeed0 is no stream");
  expect_says(shard.free(block, none), ErrorCode::kInvalidArgument, "freeing: 0xfeed0 is no stream");
  SleepOptions options;
  options.may_capture = {none};
  expect_says(sleep({&shard}, options), ErrorCode::kInvalidArgument, "sleeping, of may_capture: 0xfeed0 is no stream");
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  ASSERT_OK(sleep({&shard}));
  expect_says(wake({&shard}, std::vector<Stream>{none}), ErrorCode::kInvalidArgument, "waking: 0xfeed0 is no stream");
  EXPECT_EQ(shard.state(), ShardState::kAsleep);
  emulation().set_stream_delay(std::chrono::milliseconds(20)); // it is under way when it is asked
  auto ticket = wake({&shard}, std::vector<Stream>());
  ASSERT_OK(ticket);
  expect_says(ticket->wait(none), ErrorCode::kInvalidArgument, "waiting for a wake: 0xfeed0 is no stream");
  expect_says(ticket->wait(none, block, kMiB), ErrorCode::kInvalidArgument, "waiting for a wake: 0xfeed0 is no stream");
  ASSERT_OK(ticket->result());
  EXPECT_TRUE(holds(block, 1, kMiB * 4));
}

TEST_F(ErrorText, AStreamOfAnotherDeviceIsNamedWithTheCall) {
  if (driver_->device_count() < 2) {
    GTEST_SKIP() << "needs two devices";
  }
  Shard shard = make_shard();
  allocate(shard, kMiB);
  OwnedStream foreign = make_stream(1);
  const std::string name = "stream " + hexadecimal(foreign.get());
  expect_says(shard.allocate(kMiB, foreign.get()), ErrorCode::kInvalidArgument, "allocating: " + name);
  void* kept = allocate(shard, kMiB);
  expect_says(shard.free(kept, foreign.get()), ErrorCode::kInvalidArgument, "freeing: " + name);
  EXPECT_EQ(shard.stats().blocks, 2u) << "it is not freed";
  ASSERT_OK(sleep({&shard}));
  expect_says(wake({&shard}, std::vector<Stream>{foreign.get()}), ErrorCode::kInvalidArgument, "waking: " + name);
  if (emulated()) {
    emulation().set_stream_delay(std::chrono::milliseconds(20));
    auto ticket = wake({&shard}, std::vector<Stream>());
    ASSERT_OK(ticket);
    expect_says(ticket->wait(foreign.get()), ErrorCode::kInvalidArgument, "waiting for a wake: " + name);
    ASSERT_OK(ticket->result());
  }
}

TEST_F(ErrorText, AmountsThatAreComparedShowTheirBytes) {
  Shard shard = make_shard();
  allocate(shard, kMiB * 64);
  ASSERT_OK(sleep({&shard}));
  const auto neighbour = neighbour_leaving(Pages(31)); // 62 of 64 MiB
  const Bytes free = free_memory();
  const std::string figures = exact(kMiB * 64) + " of device 0, free " + exact(free);
  expect_says(wake({&shard}), ErrorCode::kOutOfDeviceMemory, "waking needs " + figures);
  Shard other = make_shard("other");
  expect_says(other.allocate(kMiB * 64), ErrorCode::kOutOfDeviceMemory, "needed " + figures);
}

TEST_F(ErrorText, TheHostBudgetShowsItsBytes) {
  Shard shard = make_shard();
  allocate(shard, kMiB * 8);
  set_host_budget(*driver_, kMiB * 8 - Bytes(1));
  expect_says(sleep({&shard}), ErrorCode::kOverBudget,
              "needs 8.0 MiB (8388608 bytes) more, free are 8.0 MiB (8388607 bytes)");
}

TEST_F(ErrorText, AnInjectedFaultSaysSoThroughEveryLayer) {
  Shard shard = make_shard();
  allocate(shard, kMiB * 4);
  const auto arm = [&](const char* faults) { driver_->gate().arm(*CallGate::parse(faults)); };
  arm("cuMemCreate:1+");
  expect_says(shard.allocate(kMiB * 64), ErrorCode::kOutOfDeviceMemory, "an injected fault: cuMemCreate");
  arm("cuMemHostRegister:1+");
  expect_says(sleep({&shard}), ErrorCode::kOutOfHostMemory, "an injected fault: cuMemHostRegister");
  arm("cuCtxSynchronize:1=CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
  expect_says(sleep({&shard}), ErrorCode::kBusy, "an injected fault: cuCtxSynchronize");
  arm("");
  ASSERT_OK(sleep({&shard}));
  arm("cuMemCreate:1+");
  expect_says(wake({&shard}), ErrorCode::kOutOfDeviceMemory, "an injected fault: cuMemCreate");
  arm("cuMemMap:1+"); // once is got over: the wake takes all memory anew
  expect_says(wake({&shard}), ErrorCode::kOutOfDeviceMemory, "an injected fault: cuMemMap");
  arm("");
  const auto real = shard.allocate(kMiB * 4);
  EXPECT_CODE(real, ErrorCode::kAsleep);
  EXPECT_EQ(real.error().describe().find("injected"), std::string::npos);
  ASSERT_OK(wake({&shard}));
}

} // namespace
} // namespace stillwake
