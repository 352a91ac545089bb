// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/driver_layer.h"

#include <gtest/gtest.h>

namespace stillwake {
namespace {

// Stand-ins with the signatures of real rows.
CUresult doubles(int* count) {
  *count *= 2;
  return *count > 100 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

struct Counter {
  int base = 5;
  CUresult count(int* out) {
    *out = base;
    return CUDA_SUCCESS;
  }
};

CUresult names_nothing(CUresult, const char**) { return CUDA_ERROR_INVALID_VALUE; }
CUresult names_everything(CUresult, const char** name) {
  *name = "CUDA_ERROR_FROM_THE_DRIVER";
  return CUDA_SUCCESS;
}

TEST(DriverTable, ARowCallsAFunctionOrAMethod) {
  DriverTable table;
  EXPECT_FALSE(table.cuDeviceGetCount);
  table.cuDeviceGetCount.bind_function(table.gate, CallId::cuDeviceGetCount, reinterpret_cast<void*>(&doubles));
  ASSERT_TRUE(table.cuDeviceGetCount);
  int value = 40;
  EXPECT_EQ(table.cuDeviceGetCount(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, 80);
  EXPECT_EQ(table.cuDeviceGetCount(&value), CUDA_ERROR_INVALID_VALUE);

  Counter counter;
  table.cuDriverGetVersion.bind_method<&Counter::count>(table.gate, CallId::cuDriverGetVersion, counter);
  EXPECT_EQ(table.cuDriverGetVersion(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, 5);

  EXPECT_EQ(table.gate.calls(CallId::cuDeviceGetCount), 2u);
  EXPECT_EQ(table.gate.failures(CallId::cuDeviceGetCount), 1u);
  EXPECT_EQ(table.gate.calls(), 3u);
}

TEST(DriverTable, AnInjectedFailureMakesNoCall) {
  DriverTable table;
  table.cuDeviceGetCount.bind_function(table.gate, CallId::cuDeviceGetCount, reinterpret_cast<void*>(&doubles));
  table.gate.arm(*CallGate::parse("cuDeviceGetCount:1=CUDA_ERROR_UNKNOWN"));
  int value = 3;
  EXPECT_EQ(table.cuDeviceGetCount(&value), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(value, 3);
  EXPECT_EQ(table.gate.failures(CallId::cuDeviceGetCount), 1u);
}

TEST(DriverTable, ErrorsAreSortedIntoCodes) {
  const DriverTable table;
  const auto code = [&](CUresult result) { return driver_error(table, CallId::cuMemCreate, result, "x").code; };
  EXPECT_EQ(code(CUDA_ERROR_OUT_OF_MEMORY), ErrorCode::kOutOfDeviceMemory);
  for (const CUresult sticky :
       {CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_ASSERT,
        CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED}) {
    EXPECT_EQ(code(sticky), ErrorCode::kLost) << sticky;
  }
  for (const CUresult other : {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN,
                               CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED}) {
    EXPECT_EQ(code(other), ErrorCode::kDriverCallFailed) << other;
  }
}

TEST(DriverTable, AnErrorSaysCallNumberDeedAndName) {
  DriverTable table;
  const Error plain = driver_error(table, CallId::cuMemCreate, CUDA_ERROR_OUT_OF_MEMORY, "creating 2.0 MiB");
  EXPECT_EQ(plain.describe(), "out of device memory: creating 2.0 MiB: CUDA_ERROR_OUT_OF_MEMORY (cuMemCreate: CUDA "
                              "error 2)");
  EXPECT_EQ(plain.driver_error, 2);
  EXPECT_STREQ(plain.call, "cuMemCreate");
  table.cuGetErrorName.bind_function(table.gate, CallId::cuGetErrorName, reinterpret_cast<void*>(&names_everything));
  EXPECT_EQ(driver_error(table, CallId::cuMemMap, CUDA_ERROR_UNKNOWN, "mapping").message,
            "mapping: CUDA_ERROR_FROM_THE_DRIVER");
  table.cuGetErrorName.bind_function(table.gate, CallId::cuGetErrorName, reinterpret_cast<void*>(&names_nothing));
  EXPECT_EQ(driver_error(table, CallId::cuMemMap, CUDA_ERROR_UNKNOWN, "mapping").message,
            "mapping: CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(driver_error(table, CallId::cuMemMap, static_cast<CUresult>(4711), "mapping").message,
            "mapping: unnamed error 4711");
}

TEST(DriverTable, AnErrorSaysThatItsFaultWasInjected) {
  DriverTable table;
  table.cuDeviceGetCount.bind_function(table.gate, CallId::cuDeviceGetCount, reinterpret_cast<void*>(&doubles));
  table.explain = [](CallId) -> std::string { return "the emulation's own word"; };
  table.gate.arm(*CallGate::parse("cuDeviceGetCount:1=CUDA_ERROR_UNKNOWN"));
  int value = 300;
  const Result<void> injected = STILLWAKE_CALL(table, "counting", cuDeviceGetCount, &value);
  const Result<void> real = STILLWAKE_CALL(table, "counting", cuDeviceGetCount, &value);
  ASSERT_FALSE(injected || real);
  EXPECT_EQ(injected.error().describe(),
            "driver call failed: counting: CUDA_ERROR_UNKNOWN (cuDeviceGetCount: CUDA error 999); an injected fault: "
            "cuDeviceGetCount was not called");
  EXPECT_EQ(real.error().describe(), "driver call failed: counting: CUDA_ERROR_INVALID_VALUE (cuDeviceGetCount: CUDA "
                                     "error 1); the emulation's own word");
}

TEST(DriverTable, CheckCallPassesSuccess) {
  const DriverTable table;
  EXPECT_TRUE(check_call(table, CallId::cuMemMap, CUDA_SUCCESS, "mapping"));
  EXPECT_FALSE(check_call(table, CallId::cuMemMap, CUDA_ERROR_INVALID_VALUE, "mapping"));
}

} // namespace
} // namespace stillwake
