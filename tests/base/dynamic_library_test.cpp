// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/dynamic_library.h"

#include <gtest/gtest.h>

#include <cmath>

namespace stillwake {
namespace {

TEST(DynamicLibrary, FindsASymbolThatWorks) {
  const Result<DynamicLibrary> library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library) << library.error().describe();
  const auto root = reinterpret_cast<double (*)(double)>(library->symbol("cbrt"));
  ASSERT_NE(root, nullptr);
  EXPECT_DOUBLE_EQ(root(27.0), 3.0);
  EXPECT_EQ(library->symbol("no_such_symbol_here"), nullptr);
}

TEST(DynamicLibrary, AMissingOneIsNamed) {
  const Result<DynamicLibrary> library = DynamicLibrary::open("libno-such-thing.so.1");
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code, ErrorCode::kDriverMissing);
  EXPECT_NE(library.error().message.find("libno-such-thing.so.1"), std::string::npos) << library.error().message;
}

} // namespace
} // namespace stillwake
