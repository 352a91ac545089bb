// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/heap_memory.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace stillwake {
namespace {

TEST(HeapMemory, AWholeCallAnswersWhatItsWorkDoes) {
  EXPECT_EQ(in_one_piece("counting", [] { return 41; }), 41);
  int changed = 0;
  in_one_piece("changing", [&] { changed = 1; });
  EXPECT_EQ(changed, 1);
}

TEST(HeapMemory, WithoutMemoryInTheMiddleTheProcessEndsWithASentence) {
  EXPECT_DEATH(in_one_piece("sleeping", [] { throw std::bad_alloc(); }),
               "stillwake: sleeping: the heap .* no memory left");
}

TEST(HeapMemory, AnOwnersExceptionPasses) {
  EXPECT_THROW(in_one_piece("sleeping", [] { throw std::runtime_error("its own"); }), std::runtime_error);
}

} // namespace
} // namespace stillwake
