// SPDX-License-Identifier: Apache-2.0
// Several processes on one emulated device. The other process is this program again, in a role that the environment
// names (see main.cpp).
#include "allocator/driver/emulation/ledger_table.h"
#include "tests/driver/emulation/emulated.h"
#include "tests/driver/emulation/other_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace stillwake {
namespace {

constexpr DeviceIndex kFirst{0};

class EmulatedShare : public ::testing::Test {
protected:
  EmulatedShare() : name_("test-" + std::to_string(::getpid())) {}
  ~EmulatedShare() override { EXPECT_EQ(files(), 0u) << "the last one to leave removes the files"; }
  EmulationOptions options(Bytes memory = kMiB * 64) const { return {.devices = 1, .memory = memory, .share = name_}; }
  std::size_t files() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      count += entry.path().filename().string().rfind("stillwake-" + name_ + "-", 0) == 0 ? 1 : 0;
    }
    return count;
  }

  const std::string name_;
};

TEST_F(EmulatedShare, TwoDriversCountInOneCapacity) {
  Emulated one(options());
  CUmemGenericAllocationHandle first = 0, second = 0;
  {
    Emulated two(options());
    ASSERT_EQ(one.create(kMiB * 40, first), CUDA_SUCCESS);
    EXPECT_EQ(two->used(kFirst), kMiB * 40);
    EXPECT_EQ(two.create(kMiB * 40, second), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_EQ(two.create(kMiB * 24, second), CUDA_SUCCESS);
    EXPECT_GE(one->resident(kFirst), kMiB * 64);
  } // what it left open goes with it
  EXPECT_EQ(one->used(kFirst), kMiB * 40);
  EXPECT_EQ(one.table().cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(one->resident(kFirst), Bytes(0));
}

TEST_F(EmulatedShare, MemoryOfOneIsNotSeenByAnother) {
  Emulated one(options());
  Emulated two(options());
  const Mapped mine(one, kMiB * 4);
  const Mapped theirs(two, kMiB * 4);
  std::fill_n(mine.bytes(), (kMiB * 4).size(), static_cast<unsigned char>(1));
  std::fill_n(theirs.bytes(), (kMiB * 4).size(), static_cast<unsigned char>(2));
  EXPECT_EQ(std::count(mine.bytes(), mine.bytes() + (kMiB * 4).size(), 1), static_cast<long>((kMiB * 4).size()));
}

TEST_F(EmulatedShare, AnotherProcessTakesWhatThisOneFreed) {
  Emulated one(options());
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(one.create(kMiB * 40, handle), CUDA_SUCCESS);
  {
    OtherProcess other("take-40", name_);
    EXPECT_EQ(other.line(), "CUDA_ERROR_OUT_OF_MEMORY");
  }
  ASSERT_EQ(one.table().cuMemRelease(handle), CUDA_SUCCESS);
  {
    OtherProcess other("take-40", name_);
    EXPECT_EQ(other.line(), "CUDA_SUCCESS");
    EXPECT_EQ(one->used(kFirst), kMiB * 40);
  }
  EXPECT_EQ(one->used(kFirst), Bytes(0));
}

TEST_F(EmulatedShare, AKilledProcessLosesItsPagesToTheNextWhoNeedsThem) {
  Emulated one(options());
  OtherProcess other("take-40", name_);
  ASSERT_EQ(other.line(), "CUDA_SUCCESS");
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(one.create(kMiB * 40, handle), CUDA_ERROR_OUT_OF_MEMORY);
  other.kill(); // and not waited for: a zombie holds nothing
  ASSERT_EQ(one.create(kMiB * 40, handle), CUDA_SUCCESS);
  EXPECT_EQ(one->used(kFirst), kMiB * 40);
  EXPECT_LT(one->resident(kFirst), kMiB * 44);
  EXPECT_EQ(one.table().cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(EmulatedShare, AShareOfTheDeadIsBegunAnew) {
  {
    OtherProcess other("take-40", name_);
    ASSERT_EQ(other.line(), "CUDA_SUCCESS");
    other.kill();
  }
  EXPECT_GT(files(), 0u);
  Emulated one(options(kMiB * 8)); // with another size, even
  EXPECT_EQ(one->used(kFirst), Bytes(0));
  EXPECT_EQ(one->resident(kFirst), Bytes(0));
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(one.create(kMiB * 10, handle), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(one.create(kMiB * 8, handle), CUDA_SUCCESS);
}

TEST_F(EmulatedShare, WhoeverOpensAnyShareRemovesWhatTheDeadLeftOfOthers) {
  OtherProcess living("take-40", name_);
  ASSERT_EQ(living.line(), "CUDA_SUCCESS");
  const std::string dead = name_ + "-dead";
  {
    OtherProcess other("take-40", dead);
    ASSERT_EQ(other.line(), "CUDA_SUCCESS");
    other.kill();
  }
  const auto left = [](const std::string& share) {
    return std::filesystem::exists("/dev/shm/stillwake-" + share + "-ledger") +
           std::filesystem::exists("/dev/shm/stillwake-" + share + "-0");
  };
  ASSERT_EQ(left(dead), 2);
  { const Emulated third({.devices = 1, .memory = kMiB * 2, .share = name_ + "-third"}); }
  EXPECT_EQ(left(dead), 0);
  EXPECT_EQ(left(name_), 2) << "its process lives";
}

TEST_F(EmulatedShare, AShareWhoseProcessesCannotBeSeenFromHereIsLeftAlone) {
  // As a member in another container: its number means nothing here, but its lock is seen.
  Emulated one(options());
  const std::string path = "/dev/shm/stillwake-" + name_ + "-ledger";
  const int ledger = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(ledger, 0);
  void* at = ::mmap(nullptr, sizeof(emulation::LedgerTable), PROT_READ | PROT_WRITE, MAP_SHARED, ledger, 0);
  ASSERT_NE(at, MAP_FAILED);
  emulation::ProcessIdentity& member = static_cast<emulation::LedgerTable*>(at)->member[0];
  const pid_t number = std::exchange(member.number, 1 << 28); // no process of ours has it
  { const Emulated other({.devices = 1, .memory = kMiB * 2, .share = name_ + "-other"}); }
  EXPECT_TRUE(std::filesystem::exists(path));
  member.number = number;
  ::munmap(at, sizeof(emulation::LedgerTable));
  ::close(ledger);
}

TEST_F(EmulatedShare, AFileOfAnotherUserIsNamedWithItsOwner) {
  Emulated one(options());
  for (const char* file : {"ledger", "0"}) {
    const std::string path = "/dev/shm/stillwake-" + name_ + "-" + file;
    ASSERT_EQ(::chmod(path.c_str(), std::string(file) == "0" ? 0 : 0666), 0);
  }
  const std::string owner = "user " + std::to_string(::geteuid());
  {
    OtherProcess other("join-as-nobody", name_); // might open the ledger
    const std::string line = other.line();
    const std::string file = ::geteuid() == 0 ? "-ledger" : "-0"; // without the right to be nobody it stays the owner
    EXPECT_EQ(line.rfind("invalid argument: /dev/shm/stillwake-" + name_ + file + " belongs to " + owner, 0), 0u)
        << line;
  }
  ASSERT_EQ(::chmod(("/dev/shm/stillwake-" + name_ + "-ledger").c_str(), 0), 0);
  OtherProcess other("join-as-nobody", name_);
  const std::string line = other.line();
  EXPECT_EQ(line.rfind("invalid argument: /dev/shm/stillwake-" + name_ + "-ledger belongs to " + owner, 0), 0u) << line;
  EXPECT_NE(line.find("give the share another name"), std::string::npos) << line;
}

TEST_F(EmulatedShare, AFileSizeLimitIsAnErrorAndNoSignal) {
  for (const char* role : {"limit-alone", "limit-share"}) {
    OtherProcess other(role, name_);
    const std::string line = other.line();
    EXPECT_EQ(line.rfind("out of host memory: ", 0), 0u) << line;
    EXPECT_NE(line.find("RLIMIT_FSIZE is 1.0 MiB (1048576 bytes)"), std::string::npos) << line;
    EXPECT_EQ(other.wait(), 0) << role;
    EXPECT_EQ(files(), 0u);
  }
  for (const char* role : {"limit-later-alone", "limit-later-share"}) {
    OtherProcess other(role, name_);
    const std::string line = other.line();
    EXPECT_EQ(line.rfind("CUDA_SUCCESS CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_OUT_OF_MEMORY ", 0), 0u) << line;
    EXPECT_NE(line.find("RLIMIT_FSIZE is 16.0 MiB (16777216 bytes)"), std::string::npos) << line;
    EXPECT_EQ(other.wait(), 0) << role;
  }
}

TEST_F(EmulatedShare, OtherOptionsThanTheLivingHaveAreRefused) {
  Emulated one(options());
  const auto other = Emulation::create(options(kMiB * 32));
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(other.error().message.find("64.0 MiB"), std::string::npos) << other.error().message;
}

TEST_F(EmulatedShare, AProcessThatExitsWithItsDriverOpenLeaves) {
  OtherProcess other("exit-open", name_);
  EXPECT_EQ(other.line(), "CUDA_SUCCESS");
  other.wait();
  EXPECT_EQ(files(), 0u);
}

TEST_F(EmulatedShare, AFileSystemWithoutRoomForTheLedgerIsNamedWhenItIsJoined) {
  OtherProcess other("join-without-room", name_);
  const std::string answer = other.line();
  if (answer == "not permitted") {
    GTEST_SKIP() << "needs the right to mount a small /dev/shm of its own";
  }
  const std::string path = "/dev/shm/stillwake-" + name_ + "-ledger";
  EXPECT_EQ(answer.rfind("out of host memory: " + path + " needs ", 0), 0u) << answer;
  EXPECT_NE(answer.find("1.0 MiB (1048576 bytes) are free in /dev/shm: No space left on device"), std::string::npos)
      << answer;
  EXPECT_EQ(other.line(), "0 files") << "it leaves nothing behind";
  EXPECT_EQ(other.wait(), 0);
}

TEST_F(EmulatedShare, AFullFileSystemIsOutOfMemoryAndNoSignal) {
  OtherProcess other("full", name_);
  const std::string answer = other.line();
  if (answer == "not permitted") {
    GTEST_SKIP() << "needs the right to mount a small /dev/shm of its own";
  }
  EXPECT_EQ(answer, "CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_OUT_OF_MEMORY CUDA_SUCCESS");
  // Of 16 MiB the ledger takes 1.5. The part of a device that was filled in vain is not told as taken.
  const std::string needs = "/dev/shm/stillwake-" + name_ + "-0 needs 32.0 MiB (33554432 bytes) more, 14.";
  for (const char* how : {"filled", "reserved"}) {
    const std::string note = other.line();
    EXPECT_EQ(note.rfind(needs, 0), 0u) << how << ": " << note;
    EXPECT_NE(note.find(" bytes) are free in /dev/shm: No space left on device"), std::string::npos) << note;
  }
  EXPECT_EQ(other.line(), "") << "a success has nothing to tell";
  EXPECT_EQ(other.wait(), 0);
}

} // namespace
} // namespace stillwake
