// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/base.h"

#include <gtest/gtest.h>

namespace stillwake {
namespace {

TEST(Sizes, ParseReadsWhatPeopleWrite) {
  const std::pair<const char*, std::uint64_t> rows[] = {
      {"0", 0},
      {"4096", 4096},
      {"512B", 512},
      {"64KiB", 65536},
      {"512 MiB", 536870912},
      {"8GiB", 8589934592},
      {"1.5GiB", 1610612736},
      {"2TiB", 2199023255552},
  };
  for (const auto& [text, count] : rows) {
    const Result<Bytes> size = parse_bytes(text);
    ASSERT_TRUE(size) << text;
    EXPECT_EQ(size->count(), count) << text;
  }
}

TEST(Sizes, ParseRefusesEverythingElseAndShowsWhatWouldBeRight) {
  for (const char* text : {"", " ", "GiB", "8GB", "8gib", "-1", "-1GiB", "8GiB ", "8GiBs", "1e400", "nan", "inf",
                           "0x10", "99999999999999TiB", "9223372036854775808"}) {
    const Result<Bytes> size = parse_bytes(text);
    ASSERT_FALSE(size) << "'" << text << "' gave " << size->count();
    EXPECT_EQ(size.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(size.error().message.find("'" + std::string(text) + "'"), std::string::npos) << size.error().message;
    EXPECT_NE(size.error().message.find("8GiB"), std::string::npos) << size.error().message;
  }
}

TEST(Sizes, ReadableTakesTheLargestUnitThatFits) {
  EXPECT_EQ(readable(Bytes(0)), "0 B");
  EXPECT_EQ(readable(Bytes(1023)), "1023 B");
  EXPECT_EQ(readable(Bytes(1024)), "1.0 KiB");
  EXPECT_EQ(readable(Bytes(67108864)), "64.0 MiB");
  EXPECT_EQ(readable(Bytes(21474836480)), "20.00 GiB");
  EXPECT_EQ(readable(Bytes(150323855360)), "140.00 GiB");
}

TEST(Sizes, ExactTellsAmountsApartThatRoundToTheSame) {
  const Bytes needed(21474838528);
  const Bytes free(21474836480);
  ASSERT_EQ(readable(needed), readable(free));
  EXPECT_EQ(exact(needed), "20.00 GiB (21474838528 bytes)");
  EXPECT_EQ(exact(free), "20.00 GiB (21474836480 bytes)");
  EXPECT_EQ(exact(Bytes(1023)), "1023 B");
  EXPECT_EQ(exact(Bytes(1025)), "1.0 KiB (1025 bytes)");
}

} // namespace
} // namespace stillwake
