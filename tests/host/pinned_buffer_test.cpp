// SPDX-License-Identifier: Apache-2.0
#include "tests/host/host_test.h"

#include <algorithm>

namespace stillwake {
namespace {

class PinnedBufferTest : public HostTest {};

TEST_F(PinnedBufferTest, IsZeroedPinnedAndNotCounted) {
  auto buffer = PinnedBuffer::create(*device_, Bytes(5000));
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer->size(), kKiB * 8);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(buffer->data(), buffer->data() + 8192, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(registrations(), 1u);
  EXPECT_EQ(arena_->pinned(), Bytes(0));
}

TEST_F(PinnedBufferTest, MovesAndGoesOnce) {
  PinnedBuffer target;
  EXPECT_FALSE(target);
  EXPECT_EQ(target.data(), nullptr);
  EXPECT_EQ(target.size(), Bytes(0));
  {
    auto buffer = PinnedBuffer::create(*device_, Bytes(1));
    ASSERT_TRUE(buffer);
    std::byte* const data = buffer->data();
    target = std::move(*buffer);
    EXPECT_EQ(target.data(), data);
  }
  EXPECT_EQ(registrations(), 1u);
  PinnedBuffer moved(std::move(target));
  EXPECT_FALSE(target); // NOLINT(bugprone-use-after-move): what a moved-from buffer is, is the point
  moved = PinnedBuffer();
  EXPECT_EQ(registrations(), 0u);
}

TEST_F(PinnedBufferTest, FrC5_ARefusedRegistrationLeavesNothing) {
  arm("cuMemHostRegister:1");
  const auto refused = PinnedBuffer::create(*device_, kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfHostMemory);
  arm("");
  EXPECT_EQ(registrations(), 0u);
  EXPECT_TRUE(PinnedBuffer::create(*device_, kMiB));
}

} // namespace
} // namespace stillwake
