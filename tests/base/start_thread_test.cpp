// SPDX-License-Identifier: Apache-2.0
#include "tests/base/refused_threads.h"

#include <gtest/gtest.h>

namespace stillwake {
namespace {

TEST(StartThread, RunsTheBody) {
  std::atomic<int> ran{0};
  auto started = start_thread("a test", [&ran] { ++ran; });
  ASSERT_TRUE(started) << started.error().describe();
  started->join();
  EXPECT_EQ(ran, 1);
}

TEST(StartThread, ARefusedOneIsAnErrorWithTheReasonAndTheLimits) {
  std::atomic<int> ran{0};
  {
    const RefusedThreads none("second");
    auto started = start_thread("a second test", [&ran] { ++ran; });
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code, ErrorCode::kOutOfHostMemory);
    EXPECT_EQ(none.refused(), 1);
    for (const char* part : {"for a second test", "Resource temporarily unavailable", "RLIMIT_NPROC", "RLIMIT_AS"}) {
      EXPECT_NE(started.error().message.find(part), std::string::npos) << started.error().message;
    }
    auto other = start_thread("another test", [&ran] { ++ran; });
    ASSERT_TRUE(other) << other.error().describe();
    other->join();
  }
  auto started = start_thread("a second test", [&ran] { ++ran; });
  ASSERT_TRUE(started) << started.error().describe();
  started->join();
  EXPECT_EQ(ran, 2);
}

TEST(StartThread, NoMemoryForItIsTheSameError) {
  struct Body {
    Body() = default;
    Body(const Body&) { throw std::bad_alloc(); }
    void operator()() const {}
  };
  const Body body;
  auto started = start_thread("a third test", body);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::kOutOfHostMemory);
  EXPECT_NE(started.error().message.find("no memory"), std::string::npos) << started.error().message;
}

} // namespace
} // namespace stillwake
