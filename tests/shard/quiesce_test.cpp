// SPDX-License-Identifier: Apache-2.0
// What a sleep does about work and captures that are under way, and what checked mode finds.
#include "tests/shard/stream_work.h"

namespace stillwake {
namespace {

using std::chrono::milliseconds;

class Quiesce : public ShardWork {
protected:
  void begin_capture(Stream stream) {
    ContextScope scope(device());
    ASSERT_EQ(table().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  }
  void end_capture(Stream stream) {
    ContextScope scope(device());
    CUgraph graph = nullptr;
    EXPECT_EQ(table().cuStreamEndCapture(stream, &graph), CUDA_SUCCESS) << "the capture was broken";
    EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  void expect_usable(Shard& shard, void* block, std::uint64_t seed) {
    EXPECT_EQ(shard.state(), ShardState::kAwake);
    EXPECT_TRUE(holds(block, seed, kMiB * 4));
    EXPECT_OK(shard.free(allocate(shard, kMiB), nullptr));
    ASSERT_OK(sleep({&shard}));
    ASSERT_OK(wake({&shard}));
    EXPECT_TRUE(holds(block, seed, kMiB * 4));
  }
};

TEST_F(Quiesce, WorkThatIsNotDoneInTimeIsATimeOutAndNothingHasChanged) {
  if (!device().features().context_event) {
    GTEST_SKIP() << "this driver cannot be waited for with a time limit";
  }
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 4);
  fill(block, 1, kMiB * 4);
  OwnedStream stream = make_stream();
  StreamGate gate;
  hold(gate, stream.get());
  SleepOptions options;
  options.timeout = milliseconds(80);
  const TimePoint begin = std::chrono::steady_clock::now();
  auto slept = sleep({&shard}, options);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(80));
  EXPECT_CODE(slept, ErrorCode::kTimedOut);
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  EXPECT_OK(shard.free(allocate(shard, kMiB), nullptr)); // while the work still runs
  gate.open();
  ASSERT_OK(stream.synchronize());
  options.timeout = std::chrono::seconds(20);
  ASSERT_OK(sleep({&shard}, options));
  ASSERT_OK(wake({&shard}));
  expect_usable(shard, block, 1);
}

TEST_F(Quiesce, ACaptureOnAStreamThatIsShownIsRefusedAndGoesOn) {
  Shard shard = make_shard();
  OwnedStream stream = make_stream();
  OwnedStream quiet = make_stream();
  void* block = allocate(shard, kMiB * 4, stream.get());
  fill(block, 1, kMiB * 4);
  begin_capture(stream.get());
  SleepOptions options;
  options.may_capture = {quiet.get(), stream.get()};
  EXPECT_CODE(sleep({&shard}, options), ErrorCode::kBusy);
  EXPECT_CODE(stage_sleep({&shard}, options), ErrorCode::kBusy);
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  end_capture(stream.get());
  ASSERT_OK(sleep({&shard}, options));
  ASSERT_OK(wake({&shard}));
  expect_usable(shard, block, 1);
}

TEST_F(Quiesce, ACaptureThatNobodyShowedIsRefusedToo) {
  Shard shard = make_shard();
  OwnedStream stream = make_stream();
  void* block = allocate(shard, kMiB * 4, stream.get());
  fill(block, 1, kMiB * 4);
  begin_capture(stream.get());
  EXPECT_CODE(sleep({&shard}), ErrorCode::kBusy);
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  {
    ContextScope scope(device());
    CUgraph graph = nullptr;
    (void)table().cuStreamEndCapture(stream.get(), &graph); // the driver may have ended it
    if (graph != nullptr) {
      EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
    }
  }
  expect_usable(shard, block, 1);
}

TEST_F(Quiesce, ACaptureThatTheLegacyStreamTellsOfIsRefused) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 4);
  fill(block, 1, kMiB * 4);
  // A blocking stream that the shard never saw: the legacy stream answers for it.
  CUstream blocking = nullptr;
  {
    ContextScope scope(device());
    ASSERT_EQ(table().cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    ASSERT_EQ(table().cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  }
  EXPECT_CODE(sleep({&shard}), ErrorCode::kBusy);
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  end_capture(blocking);
  {
    ContextScope scope(device());
    EXPECT_EQ(table().cuStreamDestroy(blocking), CUDA_SUCCESS);
  }
  expect_usable(shard, block, 1);
}

TEST_F(Quiesce, AnOwnerWhoKnowsOfACaptureIsBelieved) {
  class Probe : public ShardOwner {
  public:
    std::optional<bool> is_capturing(DeviceIndex) override {
      ++asked;
      return answer;
    }
    std::optional<bool> answer;
    int asked = 0;
  } probe;
  ShardOptions options;
  options.name = "probed";
  options.owner = &probe;
  Shard shard = make_shard(options);
  void* block = allocate(shard, kMiB * 4);
  fill(block, 1, kMiB * 4);
  probe.answer = true;
  EXPECT_CODE(sleep({&shard}), ErrorCode::kBusy);
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  EXPECT_GE(probe.asked, 1);
  for (std::optional<bool> answer : {std::optional<bool>(false), std::optional<bool>()}) {
    probe.answer = answer;
    expect_usable(shard, block, 1);
  }
}

TEST_F(Quiesce, AStreamThatTheShardHasSeenMayBeDestroyed) {
  Shard shard = make_shard();
  void* block = nullptr;
  {
    OwnedStream stream = make_stream();
    block = allocate(shard, kMiB * 4, stream.get());
  }
  fill(block, 1, kMiB * 4);
  expect_usable(shard, block, 1);
}

TEST_F(Quiesce, CheckedModeFindsAWriteBetweenStageAndCommit) {
  Shard shard = make_shard();
  Shard other = make_shard("other");
  auto* block = static_cast<std::byte*>(allocate(shard, kMiB * 4));
  void* in_other = allocate(other, kMiB * 4);
  fill(block, 1, kMiB * 4);
  fill(in_other, 2, kMiB * 4);
  SleepOptions options;
  options.checked = true;
  auto staged = stage_sleep({&other, &shard}, options);
  ASSERT_OK(staged);
  OwnedStream stream = make_stream();
  queue_fill(block + kPageBytes.size() + 1000, Bytes(1), 0xff, stream.get()); // one byte of the second page
  auto committed = staged->commit();
  EXPECT_CODE(committed, ErrorCode::kBusy);
  EXPECT_NE(committed.error().message.find("page 1 of shard 'weights'"), std::string::npos)
      << committed.error().message;
  EXPECT_EQ(shard.state(), ShardState::kAwake);
  EXPECT_EQ(other.state(), ShardState::kAwake);
  EXPECT_TRUE(holds(in_other, 2, kMiB * 4));
  EXPECT_CODE(staged->commit(), ErrorCode::kInvalidArgument);
  ASSERT_OK(sleep({&other, &shard}, options)); // nobody writes now
  ASSERT_OK(wake({&other, &shard}));
  auto expected = content(1, kMiB * 4);
  reinterpret_cast<unsigned char*>(expected.data())[kPageBytes.size() + 1000] = 0xff;
  EXPECT_TRUE(read(block, kMiB * 4) == expected);
}

TEST_F(Quiesce, UncheckedASleepTakesTheContractsWordForIt) {
  Shard shard = make_shard();
  void* block = allocate(shard, kMiB * 4);
  fill(block, 1, kMiB * 4);
  auto staged = stage_sleep({&shard});
  ASSERT_OK(staged);
  queue_fill(block, Bytes(1), 0xff, nullptr);
  synchronize();
  ASSERT_OK(staged->commit());
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 1, kMiB * 4)); // what was there when it was staged
}

TEST_F(Quiesce, CheckedModePassesOverWhatIsNotKept) {
  Shard scratch = make_shard("scratch", Policy::kDiscard);
  void* block = allocate(scratch, kMiB * 4);
  SleepOptions options;
  options.checked = true;
  auto staged = stage_sleep({&scratch}, options);
  ASSERT_OK(staged);
  queue_fill(block, Bytes(1), 0xff, nullptr);
  ASSERT_OK(staged->commit());
  ASSERT_OK(wake({&scratch}));
}

} // namespace
} // namespace stillwake
