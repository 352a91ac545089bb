// SPDX-License-Identifier: Apache-2.0
// Every driver call of open, save and restore is made to fail once: the error comes back, nothing is still under way,
// nothing leaks, and trying again gives every byte right.
#include "tests/transfer/transfer_fixture.h"

#include <cstdio>

namespace stillwake {
namespace {

class TransferFaultSweep : public TransferTest {
protected:
  static constexpr std::size_t kPages = 4;

  struct Live {
    std::uint64_t handles, registrations, streams, events;
    Bytes used;
    friend bool operator==(const Live&, const Live&) = default;
  };
  /// What the emulation counts; all zero on the real driver.
  Live live() {
    if (emulation() == nullptr) {
      return {};
    }
    return {emulation()->live_handles(), emulation()->live_registrations(), emulation()->live_streams(),
            emulation()->live_events(), emulation()->used(DeviceIndex(0))};
  }
  void set_delay(Duration delay) {
    if (emulation() != nullptr) {
      emulation()->set_stream_delay(delay);
    }
  }
  void expect_no_current_context() {
    CUcontext current = nullptr;
    ASSERT_EQ(table().cuCtxGetCurrent(&current), CUDA_SUCCESS);
    ASSERT_EQ(current, nullptr);
  }
  void synchronize_device() {
    const ContextScope scope(*device_);
    ASSERT_EQ(table().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  /// Runs `attempt` with the nth call failing, for n = 1, 2, ... until no call is left to fail; `check` looks at what
  /// each failure left behind. Answers in how many places it failed.
  template <class Attempt, class Check> std::uint64_t sweep(Attempt attempt, Check check) {
    std::uint64_t failed = 0;
    for (std::uint64_t nth = 1;; ++nth) {
      driver_->gate().arm({{std::nullopt, nth}});
      const bool succeeded = attempt();
      const bool injected = driver_->gate().injected() != 0;
      driver_->gate().arm({});
      if (!injected) {
        EXPECT_TRUE(succeeded);
        return failed;
      }
      failed += succeeded ? 0 : 1;
      check(nth, succeeded);
      if (::testing::Test::HasFatalFailure()) {
        ADD_FAILURE() << "at call " << nth;
        return failed;
      }
    }
  }
};

TEST_F(TransferFaultSweep, Open) {
  engine_.reset();
  const Live before = live();
  std::unique_ptr<TransferEngine> opened;
  const std::uint64_t failed = sweep(
      [&] {
        Result<std::unique_ptr<TransferEngine>> engine = TransferEngine::open(*device_, emulation());
        opened = engine ? std::move(*engine) : nullptr; // closed below, where nothing fails
        return engine.has_value();
      },
      [&](std::uint64_t, bool) {
        opened.reset();
        expect_no_current_context();
        ASSERT_EQ(live(), before);
      });
  opened.reset();
  EXPECT_EQ(live(), before);
  std::printf("open failed in %llu places\n", static_cast<unsigned long long>(failed));
  EXPECT_GE(failed, 15u);
}

TEST_F(TransferFaultSweep, Save) {
  const std::vector<std::uint64_t> seeds = {1, 0, 3, 4};
  const DeviceRegion region = make_device_region(kPages);
  write_all(region, seeds);
  HostRegion host(*device_, kPages, 2);
  std::vector<SaveTask> tasks = save_tasks(region, host, kPages);
  const Live before = live();
  const Content untouched(262144, 0xeeeeeeeeeeeeeeee);
  set_delay(std::chrono::milliseconds(1));
  const std::uint64_t failed = sweep([&] { return engine_->save(tasks).has_value(); },
                                     [&](std::uint64_t, bool succeeded) {
                                       expect_no_current_context();
                                       ASSERT_EQ(live(), before);
                                       if (!succeeded) {
                                         host.fill(0xee);
                                         synchronize_device();
                                         for (std::size_t page = 0; page < kPages; ++page) {
                                           ASSERT_EQ(host.read(page), untouched) << "written after the error";
                                         }
                                         ASSERT_TRUE(engine_->save(tasks));
                                       }
                                       for (const std::size_t page : {0, 2, 3}) {
                                         ASSERT_EQ(host.read(page), random_content(seeds[page])) << page;
                                       }
                                       host.fill(0);
                                     });
  std::printf("save failed in %llu places\n", static_cast<unsigned long long>(failed));
  EXPECT_GE(failed, 8u);
}

TEST_F(TransferFaultSweep, Restore) {
  const std::vector<std::uint64_t> seeds = {1, 0, 3, 4};
  const DeviceRegion region = make_device_region(kPages);
  write_all(region, seeds);
  const HostRegion host(*device_, kPages, 2);
  std::vector<SaveTask> saved = save_tasks(region, host, kPages);
  ASSERT_TRUE(engine_->save(saved));
  const std::vector<RestoreTask> tasks = restore_tasks(saved);
  const auto restore_all = [&]() -> bool {
    Result<std::unique_ptr<RestoreJob>> job = engine_->restore(tasks, kPageBytes * 2);
    if (!job) {
      return false;
    }
    if (!(*job)->make_wait(stream_->get(), 1) || !(*job)->is_done(0)) {
      return false; // the job is destroyed with work under way
    }
    const Result<std::vector<std::size_t>> wrong = (*job)->finish();
    return wrong && wrong->empty();
  };
  ASSERT_TRUE(restore_all()); // the pool has its events from here on
  const Live before = live();
  const Content scribbled(262144, 0xabababababababab);
  set_delay(std::chrono::milliseconds(1));
  const std::uint64_t failed = sweep(restore_all, [&](std::uint64_t, bool succeeded) {
    expect_no_current_context();
    ASSERT_EQ(live(), before);
    for (std::size_t page = 0; page < kPages; ++page) {
      write(region.at(page), scribbled);
    }
    if (!succeeded) {
      synchronize_device();
      for (std::size_t page = 0; page < kPages; ++page) {
        ASSERT_EQ(read(region.at(page)), scribbled) << "written after the error";
      }
    }
    ASSERT_TRUE(restore_all());
    for (std::size_t page = 0; page < kPages; ++page) {
      ASSERT_EQ(read(region.at(page)), seeds[page] == 0 ? zero_content() : random_content(seeds[page])) << page;
    }
  });
  std::printf("restore failed in %llu places\n", static_cast<unsigned long long>(failed));
  EXPECT_GE(failed, 12u);
}

// Waiting after a failure must not itself be stopped by a wait that fails: the whole device is waited for then.
TEST_F(TransferFaultSweep, WaitsEvenWhenWaitingForAStreamFails) {
  const DeviceRegion region = make_device_region(2);
  write_all(region, {1, 2});
  HostRegion host(*device_, 2, 2);
  std::vector<SaveTask> tasks = save_tasks(region, host, 2);
  set_delay(std::chrono::milliseconds(10));
  driver_->gate().arm({{CallId::cuStreamSynchronize, 1, CUDA_ERROR_UNKNOWN, true}});
  const Result<SaveReport> report = engine_->save(tasks);
  driver_->gate().arm({});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kDriverCallFailed);
  EXPECT_TRUE(tasks[0].copied);
  host.fill(0xee);
  synchronize_device();
  EXPECT_EQ(host.read(1), Content(262144, 0xeeeeeeeeeeeeeeee));
}

TEST_F(TransferFaultSweep, ADeviceThatCannotBeWaitedForIsLost) {
  const DeviceRegion region = make_device_region(1);
  write_all(region, {1});
  const HostRegion host(*device_, 1, 1);
  std::vector<SaveTask> tasks = save_tasks(region, host, 1);
  driver_->gate().arm({{CallId::cuStreamSynchronize, 1, CUDA_ERROR_UNKNOWN, true},
                       {CallId::cuCtxSynchronize, 1, CUDA_ERROR_UNKNOWN, true}});
  EXPECT_EQ(engine_->save(tasks).error().code, ErrorCode::kLost);
  driver_->gate().arm({{CallId::cuLaunchKernel, 1, CUDA_ERROR_ILLEGAL_ADDRESS}});
  EXPECT_EQ(engine_->save(tasks).error().code, ErrorCode::kLost);
  driver_->gate().arm({});
  synchronize_device();
}

} // namespace
} // namespace stillwake
