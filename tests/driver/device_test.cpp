// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/emulated_driver.h"

namespace stillwake {
namespace {

class DeviceTest : public EmulatedDriver {};

TEST_F(DeviceTest, KnowsItsFacts) {
  EXPECT_EQ(device_->index(), DeviceIndex(0));
  EXPECT_EQ(device_->total_memory().count(), 67108864u);
  EXPECT_TRUE(device_->features().virtual_memory);
  EXPECT_TRUE(device_->features().context_event);
  EXPECT_FALSE(device_->name().empty());
  EXPECT_NE(device_->context(), nullptr);
  const auto info = device_->memory_info();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->second.count(), 67108864u);
}

TEST_F(DeviceTest, DevicesHaveContextsOfTheirOwn) {
  Device* other = *driver_->device(DeviceIndex(1));
  EXPECT_NE(other->context(), device_->context());
  EXPECT_EQ(other->index(), DeviceIndex(1));
}

TEST_F(DeviceTest, AScopeLeavesNoContextWhereThereWasNone) {
  ASSERT_EQ(current(), nullptr);
  {
    const ContextScope scope(*device_);
    ASSERT_TRUE(scope.entered());
    EXPECT_EQ(current(), device_->context());
  }
  EXPECT_EQ(current(), nullptr);
}

TEST_F(DeviceTest, AScopeLeavesTheCallersContextCurrentAlsoWhenNested) {
  Device* mine = *driver_->device(DeviceIndex(1));
  ASSERT_EQ(table().cuCtxPushCurrent(mine->context()), CUDA_SUCCESS);
  {
    const ContextScope outer(*device_);
    const ContextScope inner(*mine);
    EXPECT_EQ(current(), mine->context());
    EXPECT_TRUE(device_->memory_info());
    EXPECT_EQ(current(), mine->context());
  }
  EXPECT_EQ(current(), mine->context());
  CUcontext popped = nullptr;
  EXPECT_EQ(table().cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, mine->context());
  EXPECT_EQ(current(), nullptr);
}

TEST_F(DeviceTest, AScopeThatCouldNotEnterPopsNothing) {
  Device* mine = *driver_->device(DeviceIndex(1));
  ASSERT_EQ(table().cuCtxPushCurrent(mine->context()), CUDA_SUCCESS);
  arm("cuCtxPushCurrent:1=CUDA_ERROR_INVALID_CONTEXT");
  {
    const ContextScope scope(*device_);
    ASSERT_FALSE(scope.entered());
    EXPECT_STREQ(scope.entered().error().call, "cuCtxPushCurrent");
  }
  EXPECT_EQ(current(), mine->context());
  arm("cuCtxPushCurrent:1");
  EXPECT_FALSE(device_->memory_info());
  EXPECT_EQ(current(), mine->context());
  CUcontext popped = nullptr;
  table().cuCtxPopCurrent(&popped);
}

TEST_F(DeviceTest, APopThatFailsIsTriedAgain) {
  arm("cuCtxPopCurrent:1");
  EXPECT_TRUE(device_->memory_info());
  EXPECT_EQ(driver_->gate().injected(), 1u);
  EXPECT_EQ(current(), nullptr);
  EXPECT_TRUE(log().empty());
}

TEST_F(DeviceTest, APopThatFailsForGoodIsLogged) {
  arm("cuCtxPopCurrent:1+");
  EXPECT_TRUE(device_->memory_info());
  arm("");
  ASSERT_EQ(log().size(), 1u);
  EXPECT_NE(log()[0].find("cuCtxPopCurrent"), std::string::npos) << log()[0];
  CUcontext popped = nullptr;
  EXPECT_EQ(table().cuCtxPopCurrent(&popped), CUDA_SUCCESS);
}

TEST_F(DeviceTest, OwnsItsOwnStreamsAndTheDefaultOnes) {
  Device* other = *driver_->device(DeviceIndex(1));
  const Result<OwnedStream> mine = OwnedStream::create(*device_);
  const Result<OwnedStream> theirs = OwnedStream::create(*other);
  ASSERT_TRUE(mine && theirs);
  EXPECT_TRUE(*device_->owns(nullptr));
  EXPECT_TRUE(*device_->owns(CU_STREAM_LEGACY));
  EXPECT_TRUE(*device_->owns(CU_STREAM_PER_THREAD));
  EXPECT_TRUE(*device_->owns(mine->get()));
  EXPECT_FALSE(*device_->owns(theirs->get()));
  EXPECT_TRUE(*other->owns(theirs->get()));
}

TEST_F(DeviceTest, WhatIsNoStreamIsNamedAndWhoAsked) {
  const auto none = reinterpret_cast<Stream>(0x1234560);
  const Result<bool> owns = device_->owns(none, "allocating");
  ASSERT_FALSE(owns);
  EXPECT_EQ(owns.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(owns.error().message.find("allocating: 0x1234560 is no stream"), std::string::npos) << owns.error().message;
  arm("cuStreamGetCtx:1");
  const Result<bool> failed = device_->owns(none, "allocating");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kDriverCallFailed);
  EXPECT_NE(failed.error().message.find("0x1234560"), std::string::npos) << failed.error().message;
}

TEST_F(DeviceTest, EveryFailureOfOpeningIsReportedAndGivesTheContextBack) {
  const DriverCounters before = driver_->counters();
  int failed = 0;
  for (int nth = 1;; ++nth) {
    arm(("*:" + std::to_string(nth)).c_str());
    const Result<std::unique_ptr<Device>> device = Device::open(table(), DeviceIndex(1));
    const bool met = driver_->gate().injected() != 0;
    arm("");
    if (!met) {
      EXPECT_TRUE(device) << device.error().describe();
      break;
    }
    ++failed;
    ASSERT_FALSE(device) << "call " << nth;
    EXPECT_EQ(device.error().code, ErrorCode::kDriverCallFailed) << device.error().describe();
    EXPECT_NE(device.error().note.find("injected"), std::string::npos) << device.error().describe();
  }
  EXPECT_GE(failed, 7);
  const DriverCounters after = driver_->counters();
  // The retain that was made to fail was no retain; every other was given back.
  EXPECT_EQ(after.calls.at("cuDevicePrimaryCtxRetain") - after.failures.at("cuDevicePrimaryCtxRetain"),
            before.calls.at("cuDevicePrimaryCtxRetain") + after.calls.at("cuDevicePrimaryCtxRelease"));
}

} // namespace
} // namespace stillwake
