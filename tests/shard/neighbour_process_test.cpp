// SPDX-License-Identifier: Apache-2.0
// Other processes: who takes the memory that a sleep gave back, and how a process may end.
#include "tests/shard/neighbour_process.h"
#include "tests/shard/stream_work.h"

#include <unistd.h>

#include <filesystem>

namespace stillwake {
namespace {

class Neighbours : public ShardWork {
protected:
  using Environment = std::map<std::string, std::string>;

  void SetUp() override {
    driver_.reset();
    DriverOptions options;
    if (std::getenv("STILLWAKE_DRIVER") == nullptr) {
      options.kind = DriverKind::kEmulated;
    }
    options.emulated_devices = 1;
    options.emulated_memory = kMemory;
    options.emulated_share = share_;
    options.faults = "";
    auto opened = Driver::open(options);
    ASSERT_OK(opened);
    driver_.emplace(std::move(*opened));
  }
  /// The same device as ours.
  Environment same_device() const {
    return {{"STILLWAKE_DRIVER", emulated() ? "emulated" : "cuda"},
            {"STILLWAKE_EMULATED_DEVICES", "1"},
            {"STILLWAKE_EMULATED_MEMORY", std::to_string(kMemory.count())},
            {"STILLWAKE_EMULATED_SHARE", share_}};
  }

  static constexpr Bytes kMemory = kMiB * 96;
  const std::string share_ = "shard-test-" + std::to_string(::getpid());
};

TEST_F(Neighbours, FR_A4_WhenSleepReturnsASecondProcessTakesTheFreedBytesAtOnce) {
  // Most of the device, so that the neighbour gets its bytes only if ours are really free.
  const Bytes most = Bytes(Pages(pages_below(free_memory() * 3 / 4)));
  Shard weights = make_shard();
  void* kept = allocate(weights, kMiB * 4);
  fill(kept, 1, kMiB * 4);
  Shard scratch = make_shard("scratch", Policy::kDiscard);
  void* dropped = allocate(scratch, most);
  queue_fill(dropped, most, 0x33, nullptr);
  Environment environment = same_device();
  environment["STILLWAKE_TEST_BYTES"] = std::to_string(most.count());
  {
    NeighbourProcess early("take", environment);
    EXPECT_NE(early.line(), "taken") << "the memory is there twice: this test would prove nothing";
  }
  for (int turn = 0; turn < 2; ++turn) {
    auto slept = sleep({&weights, &scratch});
    ASSERT_OK(slept);
    EXPECT_GE(slept->freed, most + kMiB * 4);
    NeighbourProcess neighbour("take", environment);
    EXPECT_EQ(neighbour.line(), "taken");
    EXPECT_CODE(wake({&scratch}), ErrorCode::kOutOfDeviceMemory); // it holds them now
    EXPECT_EQ(neighbour.wait(), 0);
    WakeOptions patient; // the system takes a moment to clear after a process
    patient.timeout = std::chrono::seconds(30);
    ASSERT_OK(wake({&weights, &scratch}, patient));
    EXPECT_TRUE(holds(kept, 1, kMiB * 4));
    EXPECT_TRUE(is_zero(dropped, kMiB * 4));
  }
}

TEST_F(Neighbours, AProcessMayEndInTheMiddleOfAWake) {
  Environment environment = same_device();
  environment["STILLWAKE_EMULATED_SHARE"] = share_ + "-leaver";
  environment["STILLWAKE_EMULATED_MEMORY"] = "256MiB";
  for (const char* how : {"leave-before", "leave-after", "leave-leaked", "leave-staged"}) {
    NeighbourProcess leaver(how, environment);
    EXPECT_EQ(leaver.line(), "waking") << how;
    EXPECT_EQ(leaver.wait(), 0) << how;
  }
  if (!emulated()) {
    return;
  }
  // Who ends without destroying its driver leaves the files of the share to whoever opens it next.
  {
    DriverOptions options;
    options.kind = DriverKind::kEmulated;
    options.emulated_memory = kMiB * 256;
    options.emulated_share = share_ + "-leaver";
    options.faults = "";
    auto heir = Driver::open(options);
    ASSERT_OK(heir);
    EXPECT_EQ(heir->memory(DeviceIndex(0))->free, kMiB * 256);
  }
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/stillwake-" + share_ + "-leaver-ledger"));
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/stillwake-" + share_ + "-leaver-0"));
}

TEST_F(Neighbours, AProcessMayExitWhileAnotherThreadIsInATransitionOfAStaticShard) {
  Environment environment = same_device();
  environment["STILLWAKE_EMULATED_SHARE"] = "";
  for (const char* how : {"exit-staged", "exit-turning"}) {
    NeighbourProcess leaver(how, environment);
    EXPECT_EQ(leaver.line(), "in transition") << how;
    EXPECT_EQ(leaver.wait(), 0) << how << ": -1 is a process that would have waited for ever, or was killed";
  }
}

TEST_F(Neighbours, AFullSharedMemoryFileSystemIsAnErrorAndTheShardGoesOn) {
  if (!emulated()) {
    GTEST_SKIP() << "only the emulation keeps device memory in /dev/shm";
  }
  Environment environment = same_device();
  environment["STILLWAKE_EMULATED_MEMORY"] = "1GiB";
  environment["STILLWAKE_EMULATED_SHARE"] = share_ + "-full";
  NeighbourProcess neighbour("full", environment);
  const std::string said = neighbour.line();
  if (said == "not permitted") {
    GTEST_SKIP() << "mounting a small /dev/shm needs rights that this process does not have";
  }
  EXPECT_EQ(said, "out of device memory, says where, and goes on");
  EXPECT_EQ(neighbour.wait(), 0);
}

} // namespace
} // namespace stillwake
