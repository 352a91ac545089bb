// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/driver_layer.h"
#include "allocator/driver/error_names.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace stillwake {
namespace {

TEST(CallGate, ParseReadsEveryForm) {
  const Result<std::vector<Fault>> faults =
      CallGate::parse("cuMemCreate:3, cuMemMap:2=CUDA_ERROR_NOT_READY,*:17,cuMemUnmap:1+,cuEventQuery:4+="
                      "CUDA_ERROR_ILLEGAL_ADDRESS");
  ASSERT_TRUE(faults) << faults.error().message;
  ASSERT_EQ(faults->size(), 5u);
  const Fault& create = (*faults)[0];
  EXPECT_EQ(create.call, CallId::cuMemCreate);
  EXPECT_EQ(create.nth, 3u);
  EXPECT_EQ(create.error, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(create.persistent);
  EXPECT_EQ((*faults)[1].error, CUDA_ERROR_NOT_READY);
  const Fault& any = (*faults)[2];
  EXPECT_FALSE(any.call);
  EXPECT_EQ(any.nth, 17u);
  EXPECT_EQ(any.error, CUDA_ERROR_UNKNOWN);
  const Fault& unmap = (*faults)[3];
  EXPECT_EQ(unmap.error, CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(unmap.persistent);
  const Fault& query = (*faults)[4];
  EXPECT_EQ(query.nth, 4u);
  EXPECT_TRUE(query.persistent);
  EXPECT_EQ(query.error, CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(CallGate, ParseOfNothingIsNothing) {
  for (const char* text : {"", "  "}) {
    const Result<std::vector<Fault>> faults = CallGate::parse(text);
    ASSERT_TRUE(faults);
    EXPECT_TRUE(faults->empty());
  }
}

TEST(CallGate, ParseRefusesAndNamesTheEntry) {
  for (const char* entry :
       {"cuMemCreate", "cuMemCreate:", "cuMemCreate:0", "cuMemCreate:-1", "cuMemCreate:x", "cuMemCreate:3x",
        "cuMemCreate:3++", "cuMemCreate:3=", "cuMemCreate:3=2", "cuMemCreate:3=CUDA_SUCCESS", "cuMemCreate:3=cuMemMap",
        "cuNoSuchCall:1", "cuMemCreate_v2:1", ":1", "cumemcreate:1", "cuMemCreate:99999999999999999999"}) {
    const Result<std::vector<Fault>> faults = CallGate::parse(std::string("cuMemMap:1,") + entry);
    ASSERT_FALSE(faults) << entry;
    EXPECT_EQ(faults.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(faults.error().message.find("'" + std::string(entry) + "'"), std::string::npos) << faults.error().message;
    EXPECT_NE(faults.error().message.find("as in cuMemCreate:3"), std::string::npos) << faults.error().message;
  }
  EXPECT_FALSE(CallGate::parse("cuMemMap:1,")) << "an empty entry";
}

// "cuMemAlloc" is a macro of cuda.h for its second version: people write the plain name.
TEST(CallGate, NamesArePlain) {
  EXPECT_STREQ(to_string(CallId::cuMemAlloc), "cuMemAlloc");
  EXPECT_STREQ(to_string(CallId::cuInit), "cuInit");
  EXPECT_TRUE(CallGate::parse("cuMemHostRegister:1"));
}

TEST(CallGate, ErrorNamesGoBothWays) {
  EXPECT_STREQ(error_name(CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(error_by_name("CUDA_ERROR_LAUNCH_FAILED"), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(error_name(static_cast<CUresult>(12345)), nullptr);
  EXPECT_FALSE(error_by_name("CUDA_SUCCESS"));
}

TEST(CallGate, CountsCallsAndFailures) {
  CallGate gate;
  EXPECT_EQ(gate.enter(CallId::cuMemCreate), CUDA_SUCCESS);
  gate.leave(CallId::cuMemCreate, CUDA_SUCCESS);
  EXPECT_EQ(gate.enter(CallId::cuMemCreate), CUDA_SUCCESS);
  gate.leave(CallId::cuMemCreate, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(gate.enter(CallId::cuEventQuery), CUDA_SUCCESS);
  gate.leave(CallId::cuEventQuery, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(gate.calls(CallId::cuMemCreate), 2u);
  EXPECT_EQ(gate.failures(CallId::cuMemCreate), 1u);
  EXPECT_EQ(gate.failures(CallId::cuEventQuery), 0u) << "not ready is an answer";
  EXPECT_EQ(gate.calls(), 3u);
}

TEST(CallGate, FailsTheNthCallOfThatNameAndNoOther) {
  CallGate gate;
  Fault fault;
  fault.call = CallId::cuMemMap;
  fault.nth = 2;
  fault.error = CUDA_ERROR_NOT_SUPPORTED;
  gate.arm({fault});
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  EXPECT_EQ(gate.enter(CallId::cuMemUnmap), CUDA_SUCCESS);
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  EXPECT_EQ(gate.injected(), 1u);
  EXPECT_EQ(gate.calls(CallId::cuMemMap), 3u);
  EXPECT_EQ(gate.failures(CallId::cuMemMap), 1u);
}

TEST(CallGate, APersistentFaultFailsAllLaterCallsUntilDisarmed) {
  CallGate gate;
  gate.arm(*CallGate::parse("*:2+=CUDA_ERROR_UNKNOWN"));
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  EXPECT_EQ(gate.enter(CallId::cuMemUnmap), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(gate.injected(), 2u);
  gate.arm({});
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  EXPECT_EQ(gate.injected(), 0u);
}

TEST(CallGate, ArmingStartsTheCountsAnewAndSeveralFaultsCountTogether) {
  CallGate gate;
  gate.arm(*CallGate::parse("cuMemMap:3"));
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  gate.arm(*CallGate::parse("cuMemMap:3,cuMemMap:1=CUDA_ERROR_INVALID_VALUE"));
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST(CallGate, KnowsWhichOfThisThreadsCallsItMadeToFail) {
  CallGate gate;
  CallGate other;
  gate.arm(*CallGate::parse("cuMemMap:1"));
  other.arm(*CallGate::parse("cuMemUnmap:1"));
  EXPECT_FALSE(gate.was_injected(CallId::cuMemMap));
  EXPECT_NE(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  EXPECT_TRUE(gate.was_injected(CallId::cuMemMap));
  EXPECT_FALSE(gate.was_injected(CallId::cuMemUnmap));
  EXPECT_FALSE(other.was_injected(CallId::cuMemMap));
  std::thread([&] { EXPECT_FALSE(gate.was_injected(CallId::cuMemMap)); }).join();
  EXPECT_EQ(gate.enter(CallId::cuMemUnmap), CUDA_SUCCESS); // another call in between
  EXPECT_TRUE(gate.was_injected(CallId::cuMemMap));
  EXPECT_EQ(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  EXPECT_FALSE(gate.was_injected(CallId::cuMemMap)) << "the last one was made";
  gate.arm(*CallGate::parse("cuMemMap:1"));
  EXPECT_NE(gate.enter(CallId::cuMemMap), CUDA_SUCCESS);
  gate.arm({});
  EXPECT_FALSE(gate.was_injected(CallId::cuMemMap)) << "of faults that are armed no more";
}

TEST(CallGate, OfManyThreadsExactlyOneMeetsTheFault) {
  CallGate gate;
  gate.arm(*CallGate::parse("cuMemMap:1500"));
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 1000; ++call) {
        failed += gate.enter(CallId::cuMemMap) != CUDA_SUCCESS ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(gate.calls(CallId::cuMemMap), 4000u);
}

} // namespace
} // namespace stillwake
