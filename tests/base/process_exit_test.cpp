// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

namespace stillwake {
namespace {

TEST(ProcessExit, TheDriverIsOutOfReachInAForkedChildOnly) {
  note_process_start();
  EXPECT_FALSE(driver_is_out_of_reach());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    _exit(driver_is_out_of_reach() ? 21 : 22);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 21);
  EXPECT_FALSE(driver_is_out_of_reach());
}

// Made before the first note, so destroyed after its handler ran: like a driver kept in a variable of the program.
struct AsksWhenDestroyed {
  ~AsksWhenDestroyed() { _exit(driver_is_out_of_reach() ? 21 : 22); }
};

TEST(ProcessExitDeathTest, TheDriverIsOutOfReachInExitHandlers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe"); // starts the program anew: a forked child says nothing about exits
  EXPECT_EXIT(
      {
        static AsksWhenDestroyed asks;
        note_process_start();
        std::exit(0);
      },
      testing::ExitedWithCode(21), "");
}

TEST(ProcessExitDeathTest, WhatWasCompleteBeforeTheWatchIsDestroyedOutOfReach) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        note_process_start();
        static AsksWhenDestroyed made_after_the_start;
        std::exit(0);
      },
      testing::ExitedWithCode(22), ""); // too early to be known
  EXPECT_EXIT(
      {
        note_process_start();
        static AsksWhenDestroyed in_use;
        watch_for_exit();
        std::exit(0);
      },
      testing::ExitedWithCode(21), "");
}

} // namespace
} // namespace stillwake
