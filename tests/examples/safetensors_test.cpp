// SPDX-License-Identifier: Apache-2.0
// The reader of .safetensors files: what a right file says, and one sentence for every wrong one. The files are built
// here byte by byte, so the reader is never compared with itself.
#include "examples/zero_pointer_wake/safetensors.h"
#include "examples/zero_pointer_wake/safetensors_header.h"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace example {
namespace {

class SafetensorsTest : public testing::Test {
protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / ("stillwake-safetensors-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string length(std::uint64_t value) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) {
      bytes += static_cast<char>(value >> (8 * i) & 0xff);
    }
    return bytes;
  }
  std::string write(const std::string& content) {
    const std::string path = folder_ / "model.safetensors";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  stillwake::Result<SafetensorsFile> open(const std::string& header, const std::string& data) {
    return SafetensorsFile::open(write(length(header.size()) + header + data));
  }
  /// The sentence for a header over 8 bytes of data.
  std::string fault(const std::string& header) {
    const auto file = open(header, "12345678");
    if (file) {
      return "(the file was accepted)";
    }
    EXPECT_EQ(file.error().code, stillwake::ErrorCode::kInvalidArgument);
    EXPECT_EQ(file.error().message.find(folder_.string()), 0U) << "names the file: " << file.error().message;
    EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
    return file.error().message;
  }

  std::filesystem::path folder_;
};

void expect_says(const std::string& sentence, const std::string& part) {
  EXPECT_NE(sentence.find(part), std::string::npos) << "'" << sentence << "' lacks '" << part << "'";
}

TEST_F(SafetensorsTest, ReadsEveryTensorInTheOrderOfItsBytes) {
  const auto file = open(R"({"__metadata__":{"format":"pt"},)"
                         R"("late":{"dtype":"F32","shape":[2,1],"data_offsets":[6,14]},)"
                         R"("early":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                         R"("nothing":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]},)"
                         R"("one":{"dtype":"BF16","shape":[],"data_offsets":[4,6]}}   )",
                         "abcdefABCDEFGH");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 4U);
  EXPECT_EQ(file->tensors()[0].name, "early");
  EXPECT_EQ(file->tensors()[1].name, "nothing");
  EXPECT_EQ(file->tensors()[2].name, "one");
  EXPECT_EQ(file->tensors()[3].name, "late");
  EXPECT_EQ(file->tensors()[3].shape, (std::vector<std::uint64_t>{2, 1}));
  EXPECT_EQ(file->tensors()[3].size().count(), 8U);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes(file->tensors()[3])), 8), "ABCDEFGH");
  EXPECT_EQ(shape_text(file->tensors()[3]), "2 x 1");
  EXPECT_EQ(shape_text(file->tensors()[2]), "scalar");
}

TEST_F(SafetensorsTest, AnEmptyModelIsAFile) {
  const auto file = open("{}", "");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(file->tensors().empty());
}

TEST_F(SafetensorsTest, FilesThatAreNoFiles) {
  expect_says(SafetensorsFile::open(folder_ / "absent").error().message, "No such file");
  expect_says(SafetensorsFile::open(folder_).error().message, "not a regular file");
  expect_says(SafetensorsFile::open("/dev/zero").error().message, "not a regular file");
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_says(SafetensorsFile::open(pipe).error().message, "not a regular file");
}

TEST_F(SafetensorsTest, LengthsThatLie) {
  expect_says(SafetensorsFile::open(write("")).error().message, "has 0 bytes, fewer than the 8");
  expect_says(SafetensorsFile::open(write("1234567")).error().message, "has 7 bytes, fewer than the 8");
  expect_says(SafetensorsFile::open(write(length(100) + "{}")).error().message, "has 100 bytes, but only 2 follow");
  expect_says(SafetensorsFile::open(write(length(~0ULL) + "{}")).error().message, "18446744073709551615");
  expect_says(SafetensorsFile::open(write(length(100'000'001) + "{}")).error().message, "at most 100000000");
  expect_says(SafetensorsFile::open(write(length(0))).error().message, "does not begin with '{'");
}

/// Every cut of a good file is refused, or read as a whole smaller file, but never crashes.
TEST_F(SafetensorsTest, EveryCut) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})";
  const std::string whole = length(header.size()) + header + "12345678";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(SafetensorsFile::open(write(whole.substr(0, size)))) << size;
  }
  EXPECT_TRUE(SafetensorsFile::open(write(whole)));
  expect_says(SafetensorsFile::open(write(whole.substr(0, whole.size() - 3))).error().message, "holds only 5");
  expect_says(SafetensorsFile::open(write(whole + "9")).error().message, "1 bytes follow the last tensor");
}

/// Any single byte of the header replaced by any of a few nasty ones: an answer, whatever it is, and no crash.
TEST_F(SafetensorsTest, EveryByteReplaced) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})";
  for (std::size_t at = 0; at < header.size(); ++at) {
    for (const char byte : {'\0', '"', '{', '}', '[', ']', ',', ':', '9', '-', '\\', '\xff'}) {
      std::string bad = header;
      bad[at] = byte;
      const auto file = open(bad, "12345678");
      EXPECT_TRUE(file || !file.error().message.empty());
    }
  }
}

TEST_F(SafetensorsTest, HeadersThatAreNoHeader) {
  expect_says(fault("nonsense"), "does not begin with '{'");
  expect_says(fault("[1,2]"), "does not begin with '{'");
  expect_says(fault("{\"a\":"), "is not JSON, from byte");
  expect_says(fault("{} {}"), "is not JSON, from byte");
  expect_says(fault("{\"\xff\xfe\":1}"), "is not JSON, from byte");
  expect_says(fault(R"({"a":5})"), "'a' is the number 5; a tensor is an object");
  expect_says(fault(R"({"a":null})"), "'a' is null");
  expect_says(fault(R"({"a":[1]})"), "'a' is a list");
  expect_says(fault(R"({"__metadata__":{"a":1}})"), "__metadata__ is an object of texts");
  expect_says(fault(R"({"__metadata__":{"a":{}}})"), "__metadata__ is an object of texts");
}

/// Deep nesting is refused at the level where it cannot belong, before any stack or tree grows.
TEST_F(SafetensorsTest, DeepNesting) {
  const std::string deep(1'000'000, '[');
  expect_says(fault(R"({"a":)" + deep), "'a' is a list");
  expect_says(fault(R"({"a":{"shape":)" + deep), "lists of whole numbers");
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) {
    objects += R"("a":{)";
  }
  expect_says(fault(objects), "'a' has a field 'a'; allowed are");
}

TEST_F(SafetensorsTest, FieldsThatAreWrong) {
  expect_says(fault(R"({"a":{}})"), "lacks its dtype");
  expect_says(fault(R"({"a":{"dtype":"U8","data_offsets":[0,8]}})"), "lacks its shape");
  expect_says(fault(R"({"a":{"dtype":"U8","shape":[8]}})"), "lacks its data_offsets");
  expect_says(fault(R"({"a":{"dtype":7}})"), "'dtype' of 'a' is the number 7; a dtype is a text");
  expect_says(fault(R"({"a":{"shape":8}})"), "'shape' of 'a' is the number 8");
  expect_says(fault(R"({"a":{"shape":[-1]}})"), "holds -1; only whole numbers from 0 on");
  expect_says(fault(R"({"a":{"shape":[1.5]}})"), "holds 1.5; only whole numbers");
  expect_says(fault(R"({"a":{"shape":[18446744073709551616]}})"), "only whole numbers below 2^64");
  expect_says(fault(R"({"a":{"shape":["8"]}})"), "is the text '8'");
  expect_says(fault(R"({"a":{"shape":[[8]]}})"), "is a list");
  expect_says(fault(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}})"), "has 1 data_offsets");
  expect_says(fault(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,9]}})"), "more than 2 numbers");
  expect_says(fault(R"({"a":{"dtype":"U8","shape":[8],"extra":1}})"), "has a field 'extra'; allowed are");
}

TEST_F(SafetensorsTest, DoubledNames) {
  const std::string tensor = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  expect_says(fault("{\"a\":" + tensor + ",\"a\":" + tensor + "}"), "'a' stands twice");
  expect_says(fault(R"({"a":{"dtype":"U8","dtype":"U8"}})"), "the field 'dtype' twice");
  expect_says(fault(R"({"__metadata__":{},"__metadata__":{}})"), "'__metadata__' stands twice");
}

TEST_F(SafetensorsTest, SizesThatDoNotFit) {
  expect_says(fault(R"({"a":{"dtype":"U9","shape":[8],"data_offsets":[0,8]}})"), "unknown dtype 'U9'; known are BOOL");
  expect_says(fault(R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,8]}})"),
              "has 8 bytes between its offsets, but shape 8 of F32 makes 32");
  expect_says(fault(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]}})"),
              "more bits than 64 bits can count");
  expect_says(fault(R"({"a":{"dtype":"F64","shape":[1152921504606846977],"data_offsets":[0,8]}})"),
              "more bits than 64 bits can count");
  expect_says(fault(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})"), "fill no whole byte");
  expect_says(fault(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})"),
              "begins at byte 8, after its end at 0");
}

TEST_F(SafetensorsTest, OffsetsThatDoNotFit) {
  const auto pair = [](int begin, int end, int second_begin, int second_end) {
    const auto one = [](const char* name, int from, int to) {
      return "\"" + std::string(name) + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(to - from) +
             "],\"data_offsets\":[" + std::to_string(from) + "," + std::to_string(to) + "]}";
    };
    return "{" + one("a", begin, end) + "," + one("b", second_begin, second_end) + "}";
  };
  expect_says(fault(pair(0, 5, 4, 8)), "'a' and 'b' overlap: the second begins at byte 4, the first ends at 5");
  expect_says(fault(pair(0, 8, 0, 8)), "'a' and 'b' overlap");
  expect_says(fault(pair(0, 3, 5, 8)), "a hole of 2 bytes lies before tensor 'b'");
  expect_says(fault(pair(2, 4, 4, 8)), "a hole of 2 bytes lies before tensor 'a'");
  expect_says(fault(pair(0, 3, 3, 6)), "2 bytes follow the last tensor");
  expect_says(fault(pair(0, 4, 4, 9)), "'b' ends at byte 9 of the data, but the file holds only 8");
  expect_says(fault(R"({"a":{"dtype":"U8","shape":[8],)"
                    R"("data_offsets":[18446744073709551600,18446744073709551608]}})"),
              "ends at byte 18446744073709551608");
}

TEST(PrintableName, IsFitForATerminal) {
  EXPECT_EQ(printable_name("a\x1b[31m\n\xc2\x9b"), "a?[31m?\xc2?");
  EXPECT_EQ(printable_name(std::string(100, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(printable_name("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
}

} // namespace
} // namespace example
