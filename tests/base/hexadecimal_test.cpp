// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

namespace stillwake {
namespace {

TEST(Hexadecimal, WritesAddressesPointersAndNumbersAlike) {
  EXPECT_EQ(hexadecimal(std::uint64_t{0}), "0x0");
  EXPECT_EQ(hexadecimal(~std::uint64_t{0}), "0xffffffffffffffff");
  EXPECT_EQ(hexadecimal(DeviceAddress(0x7f2000000000)), "0x7f2000000000");
  EXPECT_EQ(hexadecimal(reinterpret_cast<void*>(0x1234)), "0x1234");
  EXPECT_EQ(hexadecimal(static_cast<const void*>(nullptr)), "0x0");
  EXPECT_EQ(hexadecimal(reinterpret_cast<Stream>(0x10)), "0x10");
}

} // namespace
} // namespace stillwake
