// SPDX-License-Identifier: Apache-2.0
#include "tests/host/host_test.h"
#include "tests/host/register_spy.h"

#include <algorithm>
#include <pthread.h>
#include <thread>
#include <vector>

namespace stillwake {
namespace {

class PinningJobTest : public HostTest {
protected:
  static Ranges many(std::uint64_t count, std::uint64_t pages = 1) {
    Ranges ranges;
    for (std::uint64_t i = 0; i < count; ++i) {
      ranges.push_back(range(i * (pages + 1), pages));
    }
    return ranges;
  }
};

TEST_F(PinningJobTest, OneThreadWorksInAddressOrderWhereTheCallerWaits) {
  make_arena({.budget = std::nullopt, .pinning_threads = 1});
  auto mirror = make_mirror();
  RegisterSpy spy(table());
  const Ranges wanted = many(8, 3);
  auto job = mirror->arrange(wanted, Pages(0));
  ASSERT_TRUE(job);
  EXPECT_EQ(spy.seen().size(), 0u);
  ASSERT_TRUE((*job)->wait_for(Pages(5))); // in the second piece
  EXPECT_EQ(spy.seen().size(), 2u);
  EXPECT_EQ(mirror->pieces(), (Ranges{wanted[0], wanted[1]}));
  ASSERT_TRUE((*job)->finish());
  const auto seen = spy.seen();
  ASSERT_EQ(seen.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(seen[i].address, mirror->at(wanted[i].first));
    EXPECT_EQ(seen[i].size, Bytes(wanted[i].count));
    EXPECT_EQ(seen[i].thread, std::this_thread::get_id());
  }
}

TEST_F(PinningJobTest, APieceCanBeUsedWhileTheOthersAreUnderWay) {
  make_arena({.budget = std::nullopt, .pinning_threads = 4});
  auto mirror = make_mirror();
  const Ranges wanted = many(12);
  {
    RegisterSpy spy(table());
    spy.hold_all_but(mirror->at(Pages(0)));
    auto job = mirror->arrange(wanted, Pages(0));
    ASSERT_TRUE(job);
    ASSERT_TRUE((*job)->wait_for(Pages(0)));
    spy.wait_for_held(1); // one asks the driver to pin, the others populate or stand behind it
    EXPECT_EQ(mirror->pieces(), Ranges{wanted[0]});
    EXPECT_TRUE(mirror->is_pinned(wanted[0]));
    fill(*mirror, wanted[0], 1);
    EXPECT_EQ(arena_->pinned(), Bytes(Pages(12))) << "paid for before anything else happened";
    spy.release();
    ASSERT_TRUE((*job)->finish());
    EXPECT_TRUE((*job)->wait_for(wanted[7].first));
    for (const auto& registration : spy.seen()) {
      EXPECT_NE(registration.thread, std::this_thread::get_id());
    }
  }
  EXPECT_EQ(mirror->pieces(), wanted);
  EXPECT_TRUE(holds(*mirror, wanted[0], 1));
}

TEST_F(PinningJobTest, WaitingForPagesThatNobodyAskedForIsAnError) {
  auto mirror = make_mirror();
  must_arrange(*mirror, {range(0, 4)});
  const Ranges wanted = {range(0, 4), range(8, 2)};
  auto job = mirror->arrange(wanted, Pages(0));
  ASSERT_TRUE(job);
  EXPECT_TRUE((*job)->wait_for(Pages(3))); // kept
  EXPECT_TRUE((*job)->wait_for(Pages(9)));
  for (std::uint64_t page : {4, 7, 10, 5000}) {
    const auto waited = (*job)->wait_for(Pages(page));
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(waited.error().message.find(std::to_string(page)), std::string::npos);
  }
}

TEST_F(PinningJobTest, AHugePieceIsPopulatedInPartsAndRegisteredOnce) {
  for (int threads : {1, 3}) {
    make_arena({.budget = std::nullopt, .pinning_threads = threads});
    auto mirror = make_mirror();
    RegisterSpy spy(table());
    const PageRange huge = range(5, 131); // 262 MiB: many parts, with an odd last one
    must_arrange(*mirror, {range(1, 2), huge});
    ASSERT_EQ(spy.seen().size(), 2u);
    EXPECT_EQ(mirror->pieces(), (Ranges{range(1, 2), huge}));
    EXPECT_TRUE(is_zero(*mirror, huge));
    fill(*mirror, huge, 9);
    must_arrange(*mirror, {range(1, 136)});
    EXPECT_TRUE(holds(*mirror, huge, 9));
    ASSERT_TRUE(mirror->clear());
  }
}

TEST_F(PinningJobTest, DestroyingAJobWaitsForIt) {
  for (int threads : {1, 4}) {
    make_arena({.budget = std::nullopt, .pinning_threads = threads});
    auto mirror = make_mirror();
    const Ranges wanted = many(20);
    ASSERT_TRUE(mirror->arrange(wanted, Pages(0)));
    EXPECT_EQ(mirror->pieces(), wanted);
    mirror->check_invariants();
  }
}

TEST_F(PinningJobTest, TwoMirrorsGrowAtOnceInOneArena) {
  make_arena({.budget = std::nullopt, .pinning_threads = 2});
  auto first = make_mirror();
  auto second = make_mirror();
  const Ranges wanted = many(6);
  RegisterSpy spy(table());
  spy.hold_all_but(nullptr);
  auto first_job = first->arrange(wanted, Pages(0));
  ASSERT_TRUE(first_job);
  spy.wait_for_held(1);
  auto second_job = second->arrange(wanted, Pages(0));
  ASSERT_TRUE(second_job);
  spy.release();
  std::thread other([&] { EXPECT_TRUE((*second_job)->finish()); });
  EXPECT_TRUE((*first_job)->finish());
  other.join();
  EXPECT_EQ(first->pieces(), wanted);
  EXPECT_EQ(second->pieces(), wanted);
  first->check_invariants();
  second->check_invariants();
  EXPECT_EQ(arena_->pinned(), Bytes(Pages(12)));
}

TEST_F(PinningJobTest, EveryThreadPinsAtOnceAndEachPieceOnce) {
  make_arena({.budget = std::nullopt, .pinning_threads = 4});
  auto mirror = make_mirror();
  RegisterSpy spy(table());
  const Ranges wanted = many(30);
  spy.hold_all_but(nullptr);
  auto job = mirror->arrange(wanted, Pages(0));
  ASSERT_TRUE(job);
  spy.wait_for_held(4); // registrations that wait for each other would end here
  spy.release();
  ASSERT_TRUE((*job)->finish());
  std::vector<void*> pinned;
  for (const auto& registration : spy.seen()) {
    pinned.push_back(registration.address);
  }
  std::sort(pinned.begin(), pinned.end());
  EXPECT_EQ(pinned.size(), wanted.size());
  EXPECT_EQ(std::adjacent_find(pinned.begin(), pinned.end()), pinned.end());
  EXPECT_EQ(spy.most_at_once(), 4);
}

TEST_F(PinningJobTest, SeveralThreadsMayWaitForOneJob) {
  for (int threads : {1, 4}) {
    make_arena({.budget = std::nullopt, .pinning_threads = threads});
    auto mirror = make_mirror();
    const Ranges wanted = many(32);
    auto job = mirror->arrange(wanted, Pages(0));
    ASSERT_TRUE(job);
    std::vector<std::thread> waiters;
    for (std::size_t w = 0; w < 4; ++w) {
      waiters.emplace_back([&, w] {
        for (std::size_t i = w; i < wanted.size(); i += 4) {
          EXPECT_TRUE((*job)->wait_for(wanted[i].first));
          EXPECT_TRUE(mirror->is_pinned(wanted[i]));
        }
      });
    }
    for (std::thread& waiter : waiters) {
      waiter.join();
    }
    EXPECT_TRUE((*job)->finish());
  }
}

TEST_F(PinningJobTest, TheNumberOfThreadsChangesFromTheNextJobOn) {
  make_arena({.budget = std::nullopt, .pinning_threads = 3});
  auto mirror = make_mirror();
  auto other = make_mirror();
  RegisterSpy spy(table());
  const Ranges wanted = many(10);
  spy.hold_all_but(nullptr);
  auto job = mirror->arrange(wanted, Pages(0));
  ASSERT_TRUE(job);
  spy.wait_for_held(1);
  arena_->set_pinning_threads(1);
  spy.release();
  ASSERT_TRUE((*job)->finish()) << "the running job keeps its threads";
  const std::size_t before = spy.seen().size();
  must_arrange(*other, wanted);
  for (std::size_t i = before; i < spy.seen().size(); ++i) {
    EXPECT_EQ(spy.seen()[i].thread, std::this_thread::get_id());
  }
}

TEST_F(PinningJobTest, WhenTheSystemGivesNoThreadsTheCallerDoesItAll) {
  pthread_attr_t usual;
  pthread_attr_t absurd;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&absurd), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&absurd, std::size_t{1} << 50), 0);
  make_arena({.budget = std::nullopt, .pinning_threads = 4});
  auto mirror = make_mirror();
  RegisterSpy spy(table());
  ASSERT_EQ(pthread_setattr_default_np(&absurd), 0);
  const auto arranged = arrange(*mirror, many(5));
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  ASSERT_TRUE(arranged) << arranged.error().describe();
  for (const auto& registration : spy.seen()) {
    EXPECT_EQ(registration.thread, std::this_thread::get_id());
  }
  EXPECT_EQ(mirror->pieces(), many(5));
}

} // namespace
} // namespace stillwake
