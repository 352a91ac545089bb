// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

#include <string>

namespace stillwake {
namespace {

TEST(Clock, NeverStepsBackAndSleepsAtLeastAsLongAsAsked) {
  Clock clock;
  const TimePoint before = clock.now();
  clock.sleep_for(std::chrono::milliseconds(2));
  const TimePoint after = clock.now();
  EXPECT_GE(after - before, std::chrono::milliseconds(2));
}

TEST(Clock, SecondsAreSeconds) {
  EXPECT_DOUBLE_EQ(seconds(std::chrono::milliseconds(1500)), 1.5);
  EXPECT_DOUBLE_EQ(seconds(Duration(-1000)), -1e-6);
}

TEST(Log, HookGetsTextLevelAndContextAndNoHookIsSilent) {
  std::string seen;
  LogHook hook;
  hook(LogLevel::kError, "nobody listens");
  hook.context = &seen;
  hook.write = [](void* context, LogLevel level, const char* text) {
    *static_cast<std::string*>(context) = std::to_string(static_cast<int>(level)) + text;
  };
  hook(LogLevel::kWarning, " low");
  EXPECT_EQ(seen, "2 low");
}

} // namespace
} // namespace stillwake
