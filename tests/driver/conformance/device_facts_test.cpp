// SPDX-License-Identifier: Apache-2.0
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

namespace stillwake {
namespace {

class DeviceFacts : public Conformance {};

TEST_F(DeviceFacts, VersionIsTwelveOrNewer) {
  int version = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuDriverGetVersion(&version));
  EXPECT_GE(version, 12000);
}

TEST_F(DeviceFacts, ErrorsHaveNames) {
  const char* name = nullptr;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
  EXPECT_STREQ(name, "CUDA_ERROR_OUT_OF_MEMORY");
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name));
  EXPECT_STREQ(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuGetErrorName(static_cast<CUresult>(4711), &name));
}

TEST_F(DeviceFacts, DevicesAreNumberedFromZero) {
  int count = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuDeviceGetCount(&count));
  ASSERT_GE(count, 1);
  CUdevice device = -1;
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuDeviceGet(&device, count - 1));
  EXPECT_EQ(device, count - 1);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_DEVICE, table().cuDeviceGet(&device, count));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_DEVICE, table().cuDeviceGet(&device, -1));
}

TEST_F(DeviceFacts, VirtualMemoryIsThereAndAttributesThatAreNoneAreRefused) {
  int value = 0;
  ASSERT_ANSWER(CUDA_SUCCESS,
                table().cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
  EXPECT_EQ(value, 1);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE,
                table().cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(100000), 0));
}

TEST_F(DeviceFacts, TotalMemoryIsToldTheSameByBothCalls) {
  std::size_t total = 0;
  std::size_t free = 0;
  std::size_t total_again = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuDeviceTotalMem(&total, 0));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemGetInfo(&free, &total_again));
  EXPECT_EQ(total, total_again);
  EXPECT_LE(free, total);
}

TEST_F(DeviceFacts, GranularityIsTwoMebibytes) {
  const CUmemAllocationProp memory = on_device(0);
  std::size_t granularity = 0;
  ASSERT_ANSWER(CUDA_SUCCESS,
                table().cuMemGetAllocationGranularity(&granularity, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(granularity, 2097152u);
  ASSERT_ANSWER(CUDA_SUCCESS,
                table().cuMemGetAllocationGranularity(&granularity, &memory, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  EXPECT_EQ(granularity, 2097152u);
}

TEST_F(DeviceFacts, ContextEventsAreThere) { EXPECT_TRUE(table().cuCtxRecordEvent); }

} // namespace
} // namespace stillwake
