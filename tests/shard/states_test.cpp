// SPDX-License-Identifier: Apache-2.0
// Every call in every state answers what the list in shard.h says.
#include "tests/shard/stream_work.h"

#include <functional>

namespace stillwake {
namespace {

/// What a call answers: its error's code, or nothing when it succeeds.
using Answer = std::optional<ErrorCode>;
constexpr Answer kWorks = std::nullopt;

template <class T> Answer answer(const Result<T>& result) { return result ? Answer() : Answer(result.error().code); }

std::string name(const Answer& answer) { return answer ? to_string(*answer) : "success"; }

struct Expected {
  Answer allocate, sleep, wake, prepare, trim, host_address;
};

class States : public ShardWork {
protected:
  void SetUp() override {
    ShardWork::SetUp();
    ShardOptions options;
    options.name = "subject";
    options.host_copy = HostCopy::kReadable;
    shard_.emplace(make_shard(options));
    block_ = allocate(*shard_, kMiB * 3);
    fill(block_, 1, kMiB * 3);
    ASSERT_OK(shard_->prepare());
  }
  void TearDown() override {
    shard_.reset();
    partner_.reset();
    ShardWork::TearDown();
  }
  // Calls that the state allows and that would leave it (sleep of an awake shard) are for the other tests.
  void expect(ShardState state, const Expected& expected) {
    EXPECT_EQ(shard_->state(), state) << to_string(shard_->state());
    const auto same = [&](const char* call, const Answer& found, const Answer& wanted) {
      EXPECT_TRUE(found == wanted) << call << " while " << to_string(state) << " answers " << name(found) << ", not "
                                   << name(wanted);
    };
    auto block = shard_->allocate(kKiB);
    same("allocate", answer(block), expected.allocate);
    same("sleep", answer(sleep({&*shard_})), expected.sleep);
    same("stage_sleep", answer(stage_sleep({&*shard_})), expected.sleep);
    same("wake", answer(wake({&*shard_})), expected.wake);
    same("prepare", answer(shard_->prepare()), expected.prepare);
    same("trim", answer(shard_->trim()), expected.trim);
    same("host_address", answer(shard_->host_address(block_)), expected.host_address);
    same("mark_host_dirty", answer(shard_->mark_host_dirty(block_, Bytes(1))), expected.host_address);
    same("swap out", answer(swap({&*shard_}, {&partner()})), expected.sleep);
    expect_free_works();
    EXPECT_EQ(shard_->state(), state) << "a refused call left the state";
    EXPECT_EQ(shard_->stats().blocks, 1u + (block ? 1u : 0u) + 0u);
    if (block) {
      EXPECT_OK(shard_->free(*block));
    }
  }
  /// free is allowed in every state; foreign pointers and double frees are told in every state.
  void expect_free_works() {
    if (!spare_.empty()) {
      void* spare = spare_.back();
      spare_.pop_back();
      EXPECT_OK(shard_->free(spare));
      EXPECT_CODE(shard_->free(spare), ErrorCode::kInvalidArgument);
    }
    EXPECT_CODE(shard_->free(&spare_), ErrorCode::kInvalidArgument);
    EXPECT_CODE(shard_->free(static_cast<std::byte*>(block_) + 512), ErrorCode::kInvalidArgument);
  }
  Shard& partner() {
    if (!partner_) {
      partner_.emplace(make_shard("partner"));
      allocate(*partner_, kMiB);
    }
    EXPECT_OK(sleep({&*partner_}));
    return *partner_;
  }
  void take_spare() { spare_.push_back(allocate(*shard_, kKiB * 8)); }

  std::optional<Shard> partner_;
  std::optional<Shard> shard_;
  void* block_ = nullptr;
  std::vector<void*> spare_;
};

TEST_F(States, Awake) {
  EXPECT_EQ(shard_->state(), ShardState::kAwake);
  EXPECT_EQ(answer(shard_->host_address(block_)), ErrorCode::kBusy);
  EXPECT_EQ(answer(shard_->mark_host_dirty(block_, Bytes(1))), ErrorCode::kBusy);
  EXPECT_EQ(answer(shard_->prepare()), kWorks);
  EXPECT_EQ(answer(shard_->trim()), kWorks);
  EXPECT_EQ(answer(wake({&*shard_})), kWorks);
  EXPECT_EQ(answer(stage_wake({&*shard_})), kWorks); // of nothing
  take_spare();
  expect_free_works();
}

TEST_F(States, Sealed) {
  take_spare();
  StreamGate gate;
  OwnedStream stream = make_stream();
  hold(gate, stream.get());
  std::thread sleeper([&] { EXPECT_OK(sleep({&*shard_})); }); // is held up in its quiesce
  while (shard_->state() != ShardState::kSealed) {
    std::this_thread::yield();
  }
  // No swap here: its partner could not be put to sleep beside the gate.
  EXPECT_EQ(answer(shard_->allocate(kKiB)), ErrorCode::kBusy);
  EXPECT_EQ(answer(sleep({&*shard_})), ErrorCode::kBusy);
  EXPECT_EQ(answer(wake({&*shard_})), ErrorCode::kBusy);
  EXPECT_EQ(answer(shard_->prepare()), ErrorCode::kBusy);
  EXPECT_EQ(answer(shard_->trim()), ErrorCode::kBusy);
  EXPECT_EQ(answer(shard_->host_address(block_)), ErrorCode::kBusy);
  expect_free_works();
  EXPECT_EQ(shard_->state(), ShardState::kSealed);
  gate.open();
  sleeper.join();
  ASSERT_OK(wake({&*shard_}));
  EXPECT_TRUE(holds(block_, 1, kMiB * 3));
}

TEST_F(States, StagedSleep) {
  take_spare();
  (void)partner();
  auto staged = stage_sleep({&*shard_});
  ASSERT_OK(staged);
  expect(ShardState::kStagedSleep,
         {ErrorCode::kBusy, ErrorCode::kBusy, ErrorCode::kBusy, ErrorCode::kBusy, ErrorCode::kBusy, ErrorCode::kBusy});
  ASSERT_OK(staged->commit());
  ASSERT_OK(wake({&*shard_}));
  EXPECT_TRUE(holds(block_, 1, kMiB * 3));
}

TEST_F(States, Asleep) {
  take_spare();
  ASSERT_OK(sleep({&*shard_}));
  EXPECT_EQ(answer(shard_->allocate(kKiB)), ErrorCode::kAsleep);
  EXPECT_EQ(answer(sleep({&*shard_})), kWorks); // a no-op
  EXPECT_EQ(answer(shard_->prepare()), ErrorCode::kAsleep);
  EXPECT_EQ(answer(shard_->trim()), kWorks);
  EXPECT_EQ(answer(shard_->host_address(block_)), kWorks);
  EXPECT_EQ(answer(shard_->mark_host_dirty(block_, Bytes(1))), kWorks);
  expect_free_works();
  EXPECT_EQ(shard_->state(), ShardState::kAsleep);
  ASSERT_OK(wake({&*shard_}));
  EXPECT_TRUE(holds(block_, 1, kMiB * 3));
}

TEST_F(States, StagedWake) {
  take_spare();
  ASSERT_OK(sleep({&*shard_}));
  auto staged = stage_wake({&*shard_});
  ASSERT_OK(staged);
  expect(ShardState::kStagedWake,
         {ErrorCode::kBusy, ErrorCode::kBusy, ErrorCode::kBusy, ErrorCode::kBusy, ErrorCode::kBusy, ErrorCode::kBusy});
  auto ticket = staged->commit();
  ASSERT_OK(ticket);
  ASSERT_OK(ticket->result());
  EXPECT_TRUE(holds(block_, 1, kMiB * 3));
}

TEST_F(States, Waking) {
  if (!emulated()) {
    GTEST_SKIP() << "a wake is over too soon to be looked at; the emulation's bus can be slowed down";
  }
  take_spare();
  (void)partner();
  ASSERT_OK(sleep({&*shard_}));
  emulation().set_bandwidth(kMiB * 2); // 1.5 s
  auto ticket = wake({&*shard_}, std::vector<Stream>());
  ASSERT_OK(ticket);
  // A wake of a waking set waits for it: the last thing that is tried.
  EXPECT_EQ(shard_->state(), ShardState::kWaking);
  EXPECT_EQ(answer(sleep({&*shard_})), ErrorCode::kBusy);
  EXPECT_EQ(answer(stage_sleep({&*shard_})), ErrorCode::kBusy);
  EXPECT_EQ(answer(swap({&*shard_}, {&*partner_})), ErrorCode::kBusy);
  EXPECT_EQ(answer(shard_->prepare()), ErrorCode::kBusy);
  EXPECT_EQ(answer(shard_->trim()), ErrorCode::kBusy);
  EXPECT_EQ(answer(shard_->host_address(block_)), ErrorCode::kBusy);
  expect_free_works();
  OwnedStream stream = make_stream();
  auto block = shard_->allocate(kKiB, stream.get());
  EXPECT_OK(block);
  {
    ContextScope scope(device()); // the block may lie in a page that is on its way in: its stream waits
    EXPECT_EQ(table().cuStreamQuery(stream.get()), CUDA_ERROR_NOT_READY);
  }
  OwnedStream capturing = make_stream();
  {
    ContextScope scope(device());
    ASSERT_EQ(table().cuStreamBeginCapture(capturing.get(), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  }
  EXPECT_EQ(answer(shard_->allocate(kKiB, capturing.get())), ErrorCode::kBusy);
  {
    ContextScope scope(device());
    CUgraph graph = nullptr;
    ASSERT_EQ(table().cuStreamEndCapture(capturing.get(), &graph), CUDA_SUCCESS);
    EXPECT_EQ(table().cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  EXPECT_EQ(shard_->state(), ShardState::kWaking) << "too slow a machine for this test";
  ASSERT_OK(wake({&*shard_}));
  EXPECT_EQ(shard_->state(), ShardState::kAwake);
  EXPECT_TRUE(holds(block_, 1, kMiB * 3));
}

TEST_F(States, Corrupted) {
  take_spare();
  ASSERT_OK(sleep({&*shard_}));
  **shard_->host_address(block_) ^= std::byte{1}; // and nobody says so
  const Bytes pinned = shard_->stats().host_pinned;
  EXPECT_CODE(wake({&*shard_}), ErrorCode::kCorrupted);
  expect(ShardState::kCorrupted, {ErrorCode::kCorrupted, ErrorCode::kCorrupted, ErrorCode::kCorrupted,
                                  ErrorCode::kCorrupted, kWorks, ErrorCode::kBusy});
  EXPECT_EQ(shard_->stats().host_pinned, pinned) << "the backing is kept";
}

TEST_F(States, Lost) {
  if (!emulated()) {
    GTEST_SKIP() << "it would take the device from all tests that follow";
  }
  take_spare();
  (void)partner();
  {
    // Memory that is not mapped any more, when the work gets to it.
    StreamGate gate;
    Shard victim = make_shard("victim");
    void* gone = allocate(victim, kMiB * 2);
    ASSERT_OK(sleep({&victim}));
    ASSERT_OK(wake({&victim}));
    hold(gate, nullptr);
    queue_fill(gone, kMiB, 1, nullptr);
    ContextScope scope(device());
    EXPECT_EQ(table().cuMemUnmap(victim.core().reservation().base().value(), victim.stats().mapped.size()),
              CUDA_SUCCESS);
    gate.open();
    EXPECT_NE(table().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  EXPECT_CODE(sleep({&*shard_}), ErrorCode::kLost);
  EXPECT_EQ(shard_->state(), ShardState::kLost);
  EXPECT_EQ(answer(shard_->allocate(kKiB)), ErrorCode::kLost);
  EXPECT_EQ(answer(sleep({&*shard_})), ErrorCode::kLost);
  EXPECT_EQ(answer(wake({&*shard_})), ErrorCode::kLost);
  EXPECT_EQ(answer(shard_->prepare()), ErrorCode::kLost);
  EXPECT_EQ(answer(shard_->trim()), ErrorCode::kLost);
  expect_free_works();
  // One that sleeps meanwhile learns it when it is to wake.
  EXPECT_CODE(wake({&*partner_}), ErrorCode::kLost);
  EXPECT_EQ(partner_->state(), ShardState::kLost);
  shard_.reset();
  partner_.reset();
  driver_.reset(); // host memory stays pinned: a dead context unpins nothing
}

} // namespace
} // namespace stillwake
