// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace stillwake {
namespace {

// Counts its ends where the test can see them.
struct Counted {
  explicit Counted(int& ends) : ends(&ends) {}
  ~Counted() { ++*ends; }
  int* ends;
};

KeptAtExit<Counted> kept(int& ends) { return KeptAtExit<Counted>(std::make_unique<Counted>(ends)); }

TEST(KeptAtExit, EndsWhatItOwnsWithItself) {
  int ends = 0;
  {
    const auto owner = kept(ends);
    EXPECT_TRUE(owner);
    EXPECT_EQ(owner->ends, &ends);
    EXPECT_EQ(&*owner, owner.get());
  }
  EXPECT_EQ(ends, 1);
}

TEST(KeptAtExit, AMoveLeavesNothingBehindAndAnAssignmentEndsWhatWasOwnedBefore) {
  int first_ends = 0, second_ends = 0;
  auto first = kept(first_ends);
  auto second = kept(second_ends);
  const Counted* const moved = second.get();
  first = std::move(second);
  EXPECT_EQ(first_ends, 1);
  EXPECT_EQ(first.get(), moved);
  EXPECT_TRUE(second == nullptr);
  const auto last = std::move(first);
  EXPECT_TRUE(first == nullptr);
  EXPECT_TRUE(last != nullptr);
  EXPECT_EQ(second_ends, 0);
  static_assert(!std::is_copy_constructible_v<KeptAtExit<Counted>>);
}

TEST(KeptAtExit, AssigningToItselfChangesNothing) {
  int ends = 0;
  auto owner = kept(ends);
  auto& same = owner;
  owner = std::move(same);
  EXPECT_TRUE(owner);
  EXPECT_EQ(ends, 0);
}

TEST(KeptAtExitDeathTest, OutOfReachNothingEndsAndTheOwnerIsNotWritten) {
  GTEST_FLAG_SET(death_test_style, "threadsafe"); // starts the program anew: a forked child says nothing about exits
  EXPECT_EXIT(
      {
        note_process_start();
        static int ends = 0;
        alignas(KeptAtExit<Counted>) static std::byte place[sizeof(KeptAtExit<Counted>)];
        static std::byte before[sizeof place];
        auto* const owner = new (place) KeptAtExit<Counted>(std::make_unique<Counted>(ends));
        std::memcpy(before, place, sizeof place);
        static KeptAtExit<Counted>* const destroyed = owner;
        struct DestroysIt {
          ~DestroysIt() {
            destroyed->~KeptAtExit();
            _exit(ends == 0 && std::memcmp(before, place, sizeof place) == 0 ? 21 : 22);
          }
        };
        static DestroysIt complete_before_the_watch;
        watch_for_exit();
        std::exit(0);
      },
      testing::ExitedWithCode(21), "");
}

} // namespace
} // namespace stillwake
