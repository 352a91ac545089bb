// SPDX-License-Identifier: Apache-2.0
// What lies under the names of a share's files is input: links, other people's files, things that are no files, and
// ledgers that were damaged.
#include "allocator/driver/emulation/ledger_table.h"
#include "tests/driver/emulation/emulated.h"
#include "tests/driver/emulation/other_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace stillwake {
namespace {

using emulation::LedgerTable;

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class EmulatedShareFiles : public ::testing::Test {
protected:
  EmulatedShareFiles() : name_("files-" + std::to_string(::getpid())) {
    std::string pattern = (std::filesystem::temp_directory_path() / "stillwake-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~EmulatedShareFiles() override {
    remove();
    std::filesystem::remove_all(folder_);
  }
  Result<std::unique_ptr<Emulation>> open() const {
    return Emulation::create({.devices = 1, .memory = kMiB * 64, .share = name_});
  }
  /// Opens the share, which must be refused because of that file, with a sentence that has `what` in it.
  void expect_refused(const std::string& path, const std::string& what) const {
    const auto made = open();
    ASSERT_FALSE(made.has_value()) << what;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument) << made.error().describe();
    const std::string& message = made.error().message;
    EXPECT_EQ(message.rfind(path + " ", 0), 0u) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_NE(message.find("remove it once no process uses the share, or give the share another name"),
              std::string::npos)
        << message;
  }
  static void write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  /// The ledger of a share whose only process was killed while it held memory.
  std::string ledger_of_the_dead() const {
    OtherProcess other("take-40", name_);
    EXPECT_EQ(other.line(), "CUDA_SUCCESS");
    other.kill();
    return content(ledger_);
  }
  void remove() const {
    for (const std::string& path : {ledger_, device_}) {
      std::filesystem::remove(path);
    }
  }

  const std::string name_;
  const std::string ledger_ = emulation::ledger_path(name_);
  const std::string device_ = emulation::device_path(name_, 0);
  std::string folder_; // fresh, for what links point at
};

TEST_F(EmulatedShareFiles, ALinkIsNotFollowed) {
  const std::string target = folder_ + "/precious";
  for (const std::string& path : {ledger_, device_}) {
    for (const char* bytes : {"precious", ""}) {
      write(target, bytes);
      std::filesystem::create_symlink(target, path);
      expect_refused(path, "is a symbolic link and must be a regular file");
      EXPECT_EQ(content(target), bytes);
      EXPECT_EQ(std::filesystem::file_size(target), std::strlen(bytes));
      EXPECT_TRUE(std::filesystem::is_symlink(path)) << "it was not ours to remove";
      remove();
    }
    std::filesystem::create_symlink(folder_ + "/missing", path);
    expect_refused(path, "is a symbolic link");
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/missing"));
    remove();
  }
}

TEST_F(EmulatedShareFiles, ForeignContentIsLeftAsItIs) {
  std::string as_long_as_a_ledger(sizeof(LedgerTable), 'x');
  std::string zeros_first = as_long_as_a_ledger;
  zeros_first.replace(0, offsetof(LedgerTable, device), offsetof(LedgerTable, device), '\0');
  for (const std::string& bytes : {std::string("notes"), as_long_as_a_ledger, zeros_first}) {
    write(ledger_, bytes);
    expect_refused(ledger_, "is no ledger of this version of Stillwake");
    EXPECT_TRUE(content(ledger_) == bytes);
    remove();
  }
  write(device_, "notes");
  expect_refused(device_, "has 5 B and is not the memory of an emulated device");
  EXPECT_EQ(content(device_), "notes");
  EXPECT_FALSE(std::filesystem::exists(ledger_)) << "it was made for this attempt";
}

TEST_F(EmulatedShareFiles, WhatIsNoFileIsNamedForWhatItIs) {
  for (const std::string& path : {ledger_, device_}) {
    std::filesystem::create_directory(path);
    expect_refused(path, "is a folder and must be a regular file");
    remove();
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_refused(path, "is a fifo and must be a regular file");
    remove();
  }
}

TEST_F(EmulatedShareFiles, ASweepFollowsNoLinkAndRemovesOnlyWhatDriversLeft) {
  write(folder_ + "/empty", "");
  std::filesystem::create_symlink(folder_ + "/empty", ledger_);
  { const Emulated other({.devices = 1, .memory = kMiB * 2, .share = name_ + "-other"}); }
  EXPECT_TRUE(std::filesystem::is_symlink(ledger_));
  remove();
  ledger_of_the_dead();
  write(device_, "notes");
  { const Emulated other({.devices = 1, .memory = kMiB * 2, .share = name_ + "-other"}); }
  EXPECT_FALSE(std::filesystem::exists(ledger_));
  EXPECT_EQ(content(device_), "notes");
}

TEST_F(EmulatedShareFiles, ALedgerBegunByAProcessThatDiedIsMadeAnew) {
  std::string begun(sizeof(LedgerTable), '\0');
  begun[offsetof(LedgerTable, devices)] = 1;
  for (const std::string& bytes : {std::string(), begun}) {
    write(ledger_, bytes);
    const auto made = open();
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().describe());
  }
  EXPECT_FALSE(std::filesystem::exists(ledger_));
}

TEST_F(EmulatedShareFiles, ADamagedLedgerIsNamedWithItsFault) {
  const std::string whole = ledger_of_the_dead();
  ASSERT_EQ(whole.size(), sizeof(LedgerTable));
  const struct {
    std::size_t offset;
    std::uint64_t value;
    const char* fault;
  } rows[] = {
      {offsetof(LedgerTable, magic), ~std::uint64_t{0}, "is no ledger of this version of Stillwake, or a damaged one"},
      {offsetof(LedgerTable, magic), 0, "is no ledger of this version of Stillwake, or a damaged one"},
      {offsetof(LedgerTable, memory), 1, "is damaged (its devices have 1 bytes)"},
      {offsetof(LedgerTable, devices), 65, "is damaged (it counts 65 devices)"},
      {offsetof(LedgerTable, devices), 0, "is damaged (it counts 0 devices)"},
      {offsetof(LedgerTable, mutex) + 16, 0xEE, "is damaged (its lock is of no kind that is made)"},
      {offsetof(LedgerTable, device), ~std::uint64_t{0}, "is damaged (the capacity of device 0 is "},
      {offsetof(LedgerTable, device) + 16, ~std::uint64_t{0}, "is damaged (the next offset of device 0 is "},
      {offsetof(LedgerTable, device) + 16, 4096, "is damaged (claim 0 lies where no memory was given out)"},
      {offsetof(LedgerTable, member), 0xFFFFFFFF, "is damaged (member 0 is process -1)"},
      {offsetof(LedgerTable, member), 0, "is damaged (claim 0 belongs to no member)"},
      {offsetof(LedgerTable, claim), 257, "is damaged (claim 0 belongs to no member)"},
      {offsetof(LedgerTable, claim), 1 | std::uint64_t{7} << 32, "is damaged (claim 0 lies where no memory"},
      {offsetof(LedgerTable, claim) + 16, ~std::uint64_t{0}, "is damaged (claim 0 lies where no memory"},
  };
  for (const auto& row : rows) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + row.offset, &row.value, sizeof row.value);
    write(ledger_, bytes);
    expect_refused(ledger_, row.fault);
    EXPECT_TRUE(content(ledger_) == bytes) << row.fault;
  }
  write(ledger_, whole);
  EXPECT_TRUE(open().has_value());
}

TEST_F(EmulatedShareFiles, NoByteOfADamagedLedgerEndsTheProcess) {
  const std::string whole = ledger_of_the_dead();
  std::size_t refused = 0;
  for (std::size_t offset = 0; offset < 4096; offset += offset < 256 ? 1 : 13) {
    std::string bytes = whole;
    bytes[offset] = static_cast<char>(~bytes[offset]);
    write(ledger_, bytes);
    const auto made = open(); // what the figures cannot show is taken
    if (!made) {
      ++refused;
      EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument) << offset << ": " << made.error().describe();
      EXPECT_EQ(made.error().message.rfind(ledger_ + " ", 0), 0u) << offset << ": " << made.error().message;
    }
  }
  EXPECT_GT(refused, 20u);
}

TEST_F(EmulatedShareFiles, AKilledHolderOfTheLockStandsInNobodysWay) {
  std::string bytes = ledger_of_the_dead();
  const std::uint32_t held = 1 << 28; // the first word of the lock: no process has the number
  std::memcpy(bytes.data() + offsetof(LedgerTable, mutex), &held, sizeof held);
  write(ledger_, bytes);
  const auto made = open();
  ASSERT_TRUE(made.has_value()) << made.error().describe();
  EXPECT_EQ((*made)->used(DeviceIndex(0)), Bytes(0));
}

class LivingLedger {
public:
  explicit LivingLedger(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    at_ = ::mmap(nullptr, sizeof(LedgerTable), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT_NE(at_, MAP_FAILED);
    ::close(file);
    whole_ = table().mutex;
  }
  ~LivingLedger() {
    std::memcpy(&table().mutex, &whole_, sizeof whole_);
    ::munmap(at_, sizeof(LedgerTable));
  }
  LedgerTable& table() const { return *static_cast<LedgerTable*>(at_); }
  void write_lock(std::size_t offset, std::uint32_t word) const {
    std::memcpy(reinterpret_cast<char*>(&table().mutex) + offset, &word, sizeof word);
  }

private:
  void* at_ = nullptr;
  pthread_mutex_t whole_{};
};

TEST_F(EmulatedShareFiles, ALockDamagedWhileTheShareIsUsedIsAnErrorInTime) {
  const Emulated one({.devices = 1, .memory = kMiB * 64, .share = name_});
  const LivingLedger ledger(ledger_);
  ledger.write_lock(0, 1 << 28); // held, and by nobody
  expect_refused(ledger_, "is damaged (its lock cannot be taken)");
}

TEST_F(EmulatedShareFiles, ALockDamagedLaterMakesTheShareFullAndSaysWhy) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer rightly complains of a lock that was written over";
#endif
  Emulated one({.devices = 1, .memory = kMiB * 64, .share = name_});
  const LivingLedger ledger(ledger_);
  ledger.write_lock(8, 0x7FFFFFFE); // its owner's place says that it cannot be recovered
  ledger.write_lock(16, 0x7F);      // and its kind is none
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(one.create(kMiB * 2, handle), CUDA_ERROR_OUT_OF_MEMORY);
  const std::string note = one.table().explain(CallId::cuMemCreate);
  EXPECT_EQ(note.rfind(ledger_ + " is damaged (its lock cannot be taken)", 0), 0u) << note;
  EXPECT_EQ(one->used(DeviceIndex(0)), Bytes(0));
}

TEST_F(EmulatedShareFiles, WhoeverLeavesAShareWhoseLedgerWasRemovedTakesNothingOfTheNextOne) {
  {
    const Emulated one({.devices = 1, .memory = kMiB * 64, .share = name_});
    remove();
    write(device_, "");
  }
  EXPECT_TRUE(std::filesystem::exists(device_));
}

} // namespace
} // namespace stillwake
