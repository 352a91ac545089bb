// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/dynamic_library.h"
#include "allocator/driver/driver_layer.h"
#include "allocator/driver/emulation/emulation.h"
#include "tests/driver/environment.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace stillwake {
namespace {

// Every test starts from an environment that says nothing.
class DriverOpen : public ::testing::Test {
protected:
  EnvironmentScope driver_{"STILLWAKE_DRIVER", nullptr};
  EnvironmentScope devices_{"STILLWAKE_EMULATED_DEVICES", nullptr};
  EnvironmentScope memory_{"STILLWAKE_EMULATED_MEMORY", nullptr};
  EnvironmentScope share_{"STILLWAKE_EMULATED_SHARE", nullptr};
  EnvironmentScope faults_{"STILLWAKE_FAULTS", nullptr};

  static DriverOptions emulated() {
    DriverOptions options;
    options.kind = DriverKind::kEmulated;
    options.emulated_memory = kMiB * 64;
    return options;
  }
};

TEST_F(DriverOpen, WithoutADriverItSaysHowToTryWithoutAGpu) {
  if (DynamicLibrary::open("libcuda.so.1")) {
    GTEST_SKIP() << "this machine has a CUDA driver";
  }
  const Result<Driver> driver = Driver::open();
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, ErrorCode::kDriverMissing);
  EXPECT_NE(driver.error().message.find("libcuda.so.1"), std::string::npos) << driver.error().message;
  EXPECT_NE(driver.error().message.find("to try without a GPU set STILLWAKE_DRIVER=emulated"), std::string::npos)
      << driver.error().message;
}

TEST_F(DriverOpen, EveryWrongVariableIsAnErrorThatListsTheRightValues) {
  const struct {
    const char* name;
    const char* value;
    const char* right;
  } rows[] = {
      {"STILLWAKE_DRIVER", "gpu", "STILLWAKE_DRIVER is 'gpu'; write cuda or emulated"},
      {"STILLWAKE_DRIVER", "EMULATED", "write cuda or emulated"},
      {"STILLWAKE_DRIVER", "cuda ", "write cuda or emulated"},
      {"STILLWAKE_EMULATED_DEVICES", "0", "STILLWAKE_EMULATED_DEVICES is '0'; write a number of devices from 1 to 64"},
      {"STILLWAKE_EMULATED_DEVICES", "65", "from 1 to 64"},
      {"STILLWAKE_EMULATED_DEVICES", "-1", "from 1 to 64"},
      {"STILLWAKE_EMULATED_DEVICES", "two", "from 1 to 64"},
      {"STILLWAKE_EMULATED_DEVICES", "2x", "from 1 to 64"},
      {"STILLWAKE_EMULATED_DEVICES", "99999999999", "from 1 to 64"},
      {"STILLWAKE_EMULATED_MEMORY", "8GB", "STILLWAKE_EMULATED_MEMORY is '8GB'; write a size of 2MiB to 1TiB"},
      {"STILLWAKE_EMULATED_MEMORY", "1MiB", "2MiB to 1TiB"},
      {"STILLWAKE_EMULATED_MEMORY", "0", "2MiB to 1TiB"},
      {"STILLWAKE_EMULATED_MEMORY", "4TiB", "2MiB to 1TiB"},
      {"STILLWAKE_EMULATED_SHARE", "../other", "STILLWAKE_EMULATED_SHARE is '../other'; write a name of 1 to 64"},
      {"STILLWAKE_EMULATED_SHARE", "two words", "letters, digits"},
      {"STILLWAKE_FAULTS", "cuMemCreate", "STILLWAKE_FAULTS: the fault 'cuMemCreate' has no ':'"},
  };
  for (const auto& row : rows) {
    const EnvironmentScope kind("STILLWAKE_DRIVER", "emulated");
    const EnvironmentScope wrong(row.name, row.value);
    const Result<Driver> driver = Driver::open();
    ASSERT_FALSE(driver) << row.name << "=" << row.value;
    EXPECT_EQ(driver.error().code, ErrorCode::kInvalidArgument) << driver.error().describe();
    EXPECT_NE(driver.error().message.find(row.right), std::string::npos) << driver.error().message;
  }
}

TEST_F(DriverOpen, AWrongOptionIsNamedToo) {
  DriverOptions options = emulated();
  options.emulated_devices = 65;
  EXPECT_EQ(Driver::open(options).error().message,
            "DriverOptions::emulated_devices is '65'; write a number of devices from 1 to 64");
  options = emulated();
  options.emulated_memory = Bytes(4096);
  EXPECT_EQ(Driver::open(options).error().code, ErrorCode::kInvalidArgument);
  options = emulated();
  options.emulated_share = std::string(65, 'x');
  EXPECT_EQ(Driver::open(options).error().code, ErrorCode::kInvalidArgument);
  options = emulated();
  options.faults = "everything:1";
  EXPECT_NE(Driver::open(options).error().message.find("DriverOptions::faults"), std::string::npos);
  for (const int kind : {2, -1, 77}) {
    options = emulated();
    options.kind = static_cast<DriverKind>(kind);
    const Result<Driver> driver = Driver::open(options);
    ASSERT_FALSE(driver);
    EXPECT_EQ(driver.error().code, ErrorCode::kInvalidArgument) << driver.error().describe();
    EXPECT_EQ(driver.error().message, "DriverOptions::kind is '" + std::to_string(kind) +
                                          "'; write DriverKind::kCuda (0) or DriverKind::kEmulated (1)");
  }
}

TEST_F(DriverOpen, VariablesShapeTheDriver) {
  const EnvironmentScope kind("STILLWAKE_DRIVER", "emulated");
  const EnvironmentScope devices("STILLWAKE_EMULATED_DEVICES", "3");
  const EnvironmentScope memory("STILLWAKE_EMULATED_MEMORY", "32MiB");
  Result<Driver> driver = Driver::open();
  ASSERT_TRUE(driver) << driver.error().describe();
  EXPECT_EQ(driver->kind(), DriverKind::kEmulated);
  EXPECT_EQ(driver->device_count(), 3);
  EXPECT_EQ(driver->describe(), "emulated driver, 3 devices of 32.0 MiB");
  const Result<DeviceMemory> last = driver->memory(DeviceIndex(2));
  ASSERT_TRUE(last) << last.error().describe();
  EXPECT_EQ(last->total.count(), 33554432u);
  EXPECT_EQ(last->free, last->total);
}

TEST_F(DriverOpen, OptionsWinOverVariablesAndEmptyVariablesAreUnset) {
  const EnvironmentScope kind("STILLWAKE_DRIVER", "cuda");
  const EnvironmentScope devices("STILLWAKE_EMULATED_DEVICES", "");
  const EnvironmentScope memory("STILLWAKE_EMULATED_MEMORY", "1GiB");
  const Result<Driver> driver = Driver::open(emulated());
  ASSERT_TRUE(driver) << driver.error().describe();
  EXPECT_EQ(driver->describe(), "emulated driver, 1 device of 64.0 MiB");
}

TEST_F(DriverOpen, FaultsOfTheVariableStrike) {
  const EnvironmentScope faults("STILLWAKE_FAULTS", "cuInit:2,cuMemGetInfo:2=CUDA_ERROR_UNKNOWN");
  Result<Driver> driver = Driver::open(emulated());
  ASSERT_TRUE(driver) << driver.error().describe();
  EXPECT_TRUE(driver->memory(DeviceIndex(0)));
  const Result<DeviceMemory> second = driver->memory(DeviceIndex(0));
  ASSERT_FALSE(second);
  EXPECT_STREQ(second.error().call, "cuMemGetInfo");
  EXPECT_EQ(driver->gate().injected(), 1u);
  const DriverCounters counters = driver->counters();
  EXPECT_EQ(counters.calls.at("cuMemGetInfo"), 2u);
  EXPECT_EQ(counters.failures.at("cuMemGetInfo"), 1u);
  EXPECT_EQ(counters.calls.count("cuMemCreate"), 0u);
  EXPECT_EQ(counters.calls.at("cuInit"), 1u);
}

TEST_F(DriverOpen, TheFirstCallCanBeMadeToFailToo) {
  for (const char* fault : {"cuInit:1", "*:1=CUDA_ERROR_NO_DEVICE"}) {
    const EnvironmentScope faults("STILLWAKE_FAULTS", fault);
    const Result<Driver> driver = Driver::open(emulated());
    ASSERT_FALSE(driver) << fault;
    EXPECT_EQ(driver.error().code, ErrorCode::kDriverCallFailed) << driver.error().describe();
    EXPECT_STREQ(driver.error().call, "cuInit");
    EXPECT_EQ(driver.error().note, "an injected fault: cuInit was not called");
  }
}

TEST_F(DriverOpen, AFailureWhileOpeningLeavesNothing) {
  for (const char* fault :
       {"cuInit:1", "cuDriverGetVersion:1", "cuDeviceGetCount:1", "cuDeviceGet:1", "cuDeviceGetName:1"}) {
    DriverOptions options = emulated();
    options.faults = fault;
    const Result<Driver> driver = Driver::open(options);
    ASSERT_FALSE(driver) << fault;
    EXPECT_EQ(driver.error().code, ErrorCode::kDriverCallFailed) << driver.error().describe();
  }
  EXPECT_TRUE(Driver::open(emulated()));
}

TEST_F(DriverOpen, SeveralDriversLiveSideBySideEachWithItsOwnEmulation) {
  Result<Driver> one = Driver::open(emulated());
  DriverOptions larger = emulated();
  larger.emulated_memory = kMiB * 128;
  larger.emulated_devices = 2;
  Result<Driver> two = Driver::open(larger);
  ASSERT_TRUE(one && two);
  EXPECT_NE(one->emulation(), two->emulation());
  EXPECT_NE(&one->table(), &two->table());
  CUdeviceptr taken = 0;
  {
    const ContextScope scope(**one->device(DeviceIndex(0)));
    ASSERT_TRUE(scope.entered());
    ASSERT_EQ(one->table().cuMemAlloc(&taken, kMiB.count() * 16), CUDA_SUCCESS);
  }
  EXPECT_LT(one->memory(DeviceIndex(0))->free, kMiB * 64);
  EXPECT_EQ(two->memory(DeviceIndex(0))->free, kMiB * 128);
  const ContextScope scope(**one->device(DeviceIndex(0)));
  EXPECT_EQ(one->table().cuMemFree(taken), CUDA_SUCCESS);
}

TEST_F(DriverOpen, AMovedDriverStaysAtOneAddressWithItsDevices) {
  Result<Driver> opened = Driver::open(emulated());
  ASSERT_TRUE(opened);
  DriverTable* const table = &opened->table();
  Device* const device = *opened->device(DeviceIndex(0));
  Driver moved(std::move(*opened));
  EXPECT_EQ(&moved.table(), table);
  EXPECT_EQ(*moved.device(DeviceIndex(0)), device);
  Result<Driver> second = Driver::open(emulated());
  ASSERT_TRUE(second);
  *second = std::move(moved);
  EXPECT_EQ(&second->table(), table);
}

TEST_F(DriverOpen, ADeviceThatDoesNotExistIsRefusedWithTheRange) {
  Result<Driver> driver = Driver::open(emulated());
  ASSERT_TRUE(driver);
  for (const int index : {-1, 1, 1000000}) {
    const Result<Device*> device = driver->device(DeviceIndex(index));
    ASSERT_FALSE(device);
    EXPECT_EQ(device.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(device.error().message, "device " + std::to_string(index) + " does not exist; there is 1 device, 0");
    EXPECT_EQ(driver->memory(DeviceIndex(index)).error().code, ErrorCode::kInvalidArgument);
  }
  DriverOptions three = emulated();
  three.emulated_devices = 3;
  Result<Driver> larger = Driver::open(three);
  EXPECT_EQ(larger->device(DeviceIndex(3)).error().message, "device 3 does not exist; there are 3 devices, 0 to 2");
}

TEST_F(DriverOpen, ThreadsThatAskTogetherGetOneDevice) {
  Result<Driver> driver = Driver::open(emulated());
  ASSERT_TRUE(driver);
  std::vector<Device*> got(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&, i] { got[i] = *driver->device(DeviceIndex(0)); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (Device* device : got) {
    EXPECT_EQ(device, got[0]);
  }
  const DriverCounters counters = driver->counters();
  const auto released = counters.calls.find("cuDevicePrimaryCtxRelease");
  EXPECT_EQ(counters.calls.at("cuDevicePrimaryCtxRetain") - (released != counters.calls.end() ? released->second : 0),
            1u);
}

TEST_F(DriverOpen, ADriverThatWasMovedFromSaysSo) {
  Result<Driver> opened = Driver::open(emulated());
  ASSERT_TRUE(opened);
  Driver driver(std::move(*opened));
  EXPECT_TRUE(driver.is_open());
  EXPECT_FALSE(opened->is_open()); // NOLINT(bugprone-use-after-move)
  const auto memory = opened->memory(DeviceIndex(0));
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(memory.error().message.find("Driver was moved from"), std::string::npos) << memory.error().message;
  EXPECT_EQ(opened->device(DeviceIndex(0)).error().code, ErrorCode::kInvalidArgument);
  *opened = std::move(driver);
  EXPECT_TRUE(opened->memory(DeviceIndex(0)));
}

TEST(DriverOpenDeathTest, CallsThatCannotFailEndTheProcessWithASentence) {
  DriverOptions options;
  options.kind = DriverKind::kEmulated;
  options.faults = "";
  Result<Driver> opened = Driver::open(options);
  ASSERT_TRUE(opened);
  const Driver driver(std::move(*opened));
  const char* sentence = "stillwake: this Driver was moved from";
  EXPECT_DEATH(opened->kind(), sentence);
  EXPECT_DEATH(opened->describe(), sentence);
  EXPECT_DEATH(opened->device_count(), sentence);
  EXPECT_DEATH(opened->counters(), sentence);
  EXPECT_DEATH(opened->table(), sentence);
  EXPECT_DEATH(opened->gate(), sentence);
  EXPECT_DEATH(opened->emulation(), sentence);
}

// Uses its device while it dies: it has to go first.
class Attached : public DriverAttachment {
public:
  explicit Attached(Driver& driver) : device_(**driver.device(DeviceIndex(0))) {}
  ~Attached() override { answered = device_.memory_info().has_value(); }
  static inline bool answered = false;

private:
  Device& device_;
};

TEST_F(DriverOpen, TheAttachmentIsMadeOnceAndGoesBeforeTheDevices) {
  Attached::answered = false;
  {
    Result<Driver> driver = Driver::open(emulated());
    ASSERT_TRUE(driver);
    const auto make = [](Driver& of) -> std::unique_ptr<DriverAttachment> { return std::make_unique<Attached>(of); };
    DriverAttachment& first = driver->attachment(make);
    EXPECT_EQ(&driver->attachment(make), &first);
    EXPECT_FALSE(Attached::answered);
  }
  EXPECT_TRUE(Attached::answered);
}

TEST_F(DriverOpen, InAForkedChildEveryEntryIsRefusedAndEveryDestructorIsInert) {
  Result<Driver> driver = Driver::open(emulated());
  ASSERT_TRUE(driver);
  ASSERT_TRUE(driver->device(DeviceIndex(0)));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::uint64_t before = driver->gate().calls();
    const bool refused = driver->memory(DeviceIndex(0)).error().code == ErrorCode::kLost &&
                         Driver::open(emulated()).error().code == ErrorCode::kLost;
    const bool silent = driver->gate().calls() == before;
    { const Driver gone(std::move(*driver)); }
    _exit(refused && silent ? 21 : 22);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 21);
  EXPECT_TRUE(driver->memory(DeviceIndex(0)));
}

} // namespace
} // namespace stillwake
