// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/host_budget.h"
#include "tests/base/system_files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace stillwake {
namespace {

TEST(HostBudget, TakesAllOrNothingOfWhatTheUserGave) {
  const SystemFiles none;
  HostBudget budget(kMiB * 10, none.root());
  EXPECT_EQ(budget.limit(), kMiB * 10);
  ASSERT_TRUE(budget.take(kMiB * 6));
  const auto refused = budget.take(kMiB * 5);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOverBudget);
  const std::string& text = refused.error().message;
  for (Bytes figure : {kMiB * 5, kMiB * 4, kMiB * 10}) {
    EXPECT_NE(text.find(readable(figure)), std::string::npos) << text;
  }
  EXPECT_NE(text.find("the budget that was given"), std::string::npos) << text;
  EXPECT_EQ(budget.used(), kMiB * 6);
  EXPECT_TRUE(budget.take(kMiB * 4));
  budget.give_back(kMiB * 10);
  EXPECT_EQ(budget.used(), Bytes(0));
}

TEST(HostBudget, WithoutAnyLimitItOnlyCounts) {
  const SystemFiles none;
  HostBudget budget(std::nullopt, none.root());
  EXPECT_FALSE(budget.limit());
  EXPECT_TRUE(budget.take(kGiB * 100000));
  EXPECT_EQ(budget.used(), kGiB * 100000);
}

TEST(HostBudget, TheGroupsLimitIsHardAndNamesItsFolder) {
  SystemFiles files;
  files.write_group(kMiB * 8);
  HostBudget budget(kMiB * 10, files.root());
  EXPECT_EQ(budget.limit(), kMiB * 8);
  EXPECT_TRUE(budget.take(kKiB * 7680)) << "a sixteenth is kept for the processes";
  const auto refused = budget.take(Bytes(1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOverBudget);
  EXPECT_NE(refused.error().message.find("free are 0 B of 8.0 MiB (the limit of the control group " +
                                         files.group_folder() + ", of which 512.0 KiB are kept for the processes"),
            std::string::npos)
      << refused.error().message;
}

TEST(HostBudget, WhatWasTakenAndHasNoMemoryYetIsNotFree) {
  SystemFiles files;
  const auto hold = [&files](Bytes in_use) { files.write_group(kMiB * 160, in_use); };
  hold(kMiB * 50);
  HostBudget budget(std::nullopt, files.root());
  ASSERT_TRUE(budget.take(kMiB * 60)); // 160 less 50 in use less 10 kept: 100 are free
  EXPECT_FALSE(budget.take(kMiB * 60)) << "the group does not see the first 60 yet";
  ASSERT_TRUE(budget.take(kMiB * 30));
  hold(kMiB * 110); // the first 60 are populated
  budget.settle(kMiB * 60);
  EXPECT_EQ(budget.without_memory(), kMiB * 30);
  EXPECT_FALSE(budget.take(kMiB * 11));
  EXPECT_TRUE(budget.take(kMiB * 10));
  budget.settle(kMiB * 40); // never populated
  budget.give_back(kMiB * 40);
  budget.expect(kMiB * 15); // of the first 60 so many go to the system and come again
  hold(kMiB * 95);
  EXPECT_FALSE(budget.take(kMiB * 41));
  EXPECT_TRUE(budget.take(kMiB * 40));
}

TEST(HostBudget, WhatOtherRanksOfTheGroupHoldIsNotFree) {
  SystemFiles files;
  files.write_group(kMiB * 8, kMiB * 5);
  HostBudget budget(std::nullopt, files.root());
  EXPECT_FALSE(budget.take(kMiB * 3));
  files.write_group(kMiB * 8, kMiB);
  EXPECT_TRUE(budget.take(kMiB * 4));
}

TEST(HostBudget, ALimitBelowWhatIsTakenTakesNothingAway) {
  const SystemFiles none;
  HostBudget budget(kMiB * 10, none.root());
  ASSERT_TRUE(budget.take(kMiB * 6));
  budget.set_limit(kMiB * 2);
  EXPECT_EQ(budget.used(), kMiB * 6);
  EXPECT_FALSE(budget.take(Bytes(1)));
  EXPECT_TRUE(budget.take(Bytes(0)));
  budget.set_limit(std::nullopt);
  EXPECT_TRUE(budget.take(kMiB * 100));
}

TEST(HostBudget, ThreadsNeverTakeMoreThanThereIs) {
  const SystemFiles none;
  HostBudget budget(Bytes(1000), none.root());
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        taken += budget.take(Bytes(7)).has_value() ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(taken, 1000 / 7);
  EXPECT_EQ(budget.used(), Bytes(7 * (1000 / 7)));
}

TEST(HostBudgetDeathTest, GivingBackMoreThanWasTakenIsOurBug) {
  HostBudget budget;
  EXPECT_DEATH(budget.give_back(Bytes(3)), "3 against 0");
}

} // namespace
} // namespace stillwake
