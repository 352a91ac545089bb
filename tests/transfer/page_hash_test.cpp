// SPDX-License-Identifier: Apache-2.0
// The page hash against a second implementation, written from the definition in docs/design/fingerprints.md alone.
#include "allocator/transfer/page_hash.h"

#include "allocator/transfer/kernel_twins.h"
#include "tests/transfer/page_content.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace stillwake {
namespace {

std::uint64_t mix_by_definition(std::uint64_t x) {
  x ^= x >> 30;
  x *= 13787848793156543929ull;
  x ^= x >> 27;
  x *= 10723151780598845931ull;
  x ^= x >> 31;
  return x;
}

std::uint64_t lane_by_definition(const Content& page, std::uint64_t seed, int lane) {
  const std::uint64_t golden = 11400714819323198485ull;
  std::uint64_t sum = 0;
  for (std::uint64_t strip = 0; strip < 1024; ++strip) {
    const std::uint64_t start = mix_by_definition(seed + golden * static_cast<std::uint64_t>(lane + 1));
    std::uint64_t low = start % (1ull << 32);
    std::uint64_t high = start >> 32;
    for (std::size_t unit = strip; unit < 131072; unit += 1024) {
      for (std::size_t word = 2 * unit; word < 2 * unit + 2; ++word) {
        const std::uint64_t word_low = page[word] % (1ull << 32);
        const std::uint64_t word_high = page[word] >> 32;
        low = lane == 0 ? low ^ word_low : (low + word_high) % (1ull << 32);
        high = lane == 0 ? high ^ word_high : (high + word_low) % (1ull << 32);
        const std::uint64_t first = low * (lane == 0 ? 1779033703ull : 1359893119ull);
        high ^= (first >> 32) ^ (first % (1ull << 32));
        const std::uint64_t second = high * (lane == 0 ? 3144134277ull : 1541459225ull);
        low ^= (second >> 32) ^ (second % (1ull << 32));
      }
    }
    sum += mix_by_definition((high << 32 | low) ^ (strip * golden));
  }
  return sum;
}

PageDigest digest(const Content& page, std::uint64_t seed = 7) { return digest_of_page(page.data(), seed); }

// A page of normally distributed floats, as weights are.
Content float_content() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  Content content = zero_content();
  auto* values = reinterpret_cast<float*>(content.data());
  std::generate(values, values + 2 * content.size(), [&] { return normal(random); });
  return content;
}

::testing::AssertionResult each_lane_differs(const PageDigest& a, const PageDigest& b) {
  if (a.lane[0] == b.lane[0] || a.lane[1] == b.lane[1]) {
    return ::testing::AssertionFailure() << "lanes equal: " << (a.lane[0] == b.lane[0]) << (a.lane[1] == b.lane[1]);
  }
  return ::testing::AssertionSuccess();
}

TEST(PageHash, IsWhatItsDefinitionSays) {
  const Content contents[] = {zero_content(), Content(262144, ~0ull), random_content(1), float_content()};
  for (const Content& content : contents) {
    for (const std::uint64_t seed : {0ull, 1ull, 0x123456789abcdef0ull}) {
      const PageDigest found = digest(content, seed);
      EXPECT_EQ(found.lane[0], lane_by_definition(content, seed, 0));
      EXPECT_EQ(found.lane[1], lane_by_definition(content, seed, 1));
    }
  }
}

TEST(PageHash, TellsZeroPagesAndZeroLowHalves) {
  Content content = zero_content();
  EXPECT_TRUE(digest(content).is_zero());
  EXPECT_TRUE(digest(content).low_halves_are_zero());
  for (const std::size_t word : {0, 1, 2047, 2048, 131071, 262143}) {
    for (const int bit : {0, 15, 16, 31, 32, 47, 48, 63}) {
      content[word] = 1ull << bit;
      EXPECT_FALSE(digest(content).is_zero());
      EXPECT_EQ(digest(content).any_bits, 1ull << bit);
      EXPECT_EQ(digest(content).low_halves_are_zero(), bit % 32 >= 16) << bit;
      content[word] = 0;
    }
  }
}

TEST(PageHash, DependsOnTheSeed) {
  const Content content = random_content(2);
  EXPECT_TRUE(each_lane_differs(digest(content, 1), digest(content, 2)));
  EXPECT_TRUE(each_lane_differs(digest(zero_content(), 1), digest(zero_content(), 2)));
}

TEST(PageHash, EachLaneSeesWordsMovedAnywhere) {
  const Content content = float_content();
  const PageDigest before = digest(content);
  for (const int shift : {1, 2, 3, 512, 2048, 2049, 131072}) { // words; 2048 is from strip to the same strip
    Content moved = content;
    std::rotate(moved.begin(), moved.begin() + shift, moved.end());
    EXPECT_TRUE(each_lane_differs(before, digest(moved))) << shift;
  }
  std::mt19937 random(4);
  for (int i = 0; i < 100; ++i) {
    Content swapped = content;
    const std::size_t a = random() % content.size();
    const std::size_t near = std::min<std::size_t>(a + 1, content.size() - 1);
    const std::size_t b = i % 3 == 0 ? random() % content.size() : i % 3 == 1 ? near : (a + 2048) % content.size();
    std::swap(swapped[a], swapped[b]);
    EXPECT_EQ(swapped == content, digest(swapped) == before);
    EXPECT_TRUE(swapped == content || each_lane_differs(before, digest(swapped))) << a << " and " << b;
  }
}

TEST(PageHash, EachLaneSeesTwoSignsFlippedInDifferentStrips) {
  for (const Content& content : {float_content(), zero_content(), Content(262144, 0x3f8000003f800000ull)}) {
    const PageDigest before = digest(content);
    std::mt19937 random(5);
    for (int i = 0; i < 60; ++i) {
      Content flipped = content;
      const std::size_t a = random() % content.size();
      const std::size_t b = (a + 1 + random() % (content.size() - 1)) % content.size();
      flipped[a] ^= 1ull << (i % 2 == 0 ? 63 : 31);
      flipped[b] ^= 1ull << (i % 4 < 2 ? 63 : 31);
      EXPECT_TRUE(each_lane_differs(before, digest(flipped))) << a << " and " << b;
    }
  }
}

// The states after a strip's 256 words: all of a strip, so that every pair can be tried.
struct StripStates {
  page_hash::LaneState lane_0 = page_hash::begin(7, 0);
  page_hash::LaneState lane_1 = page_hash::begin(7, 1);
  void absorb(std::uint64_t word) {
    page_hash::absorb_0(lane_0, static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32));
    page_hash::absorb_1(lane_1, static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32));
  }
};

bool any_lane_equal(const StripStates& a, const StripStates& b) {
  const auto same = [](page_hash::LaneState x, page_hash::LaneState y) { return x.low == y.low && x.high == y.high; };
  return same(a.lane_0, b.lane_0) || same(a.lane_1, b.lane_1);
}

/// What is too weak: a sign bit never leaves the top, so that a second one takes the first one back.
struct WeakState {
  std::uint64_t value = 1;
  void absorb(std::uint64_t word) { value = (value ^ word) * 0x9e3779b97f4a7c15ull; }
};
bool any_lane_equal(const WeakState& a, const WeakState& b) { return a.value == b.value; }

// Changes two words of the strip in every possible place and counts the pairs of places where a lane sees nothing.
template <class States = StripStates, class Change>
int blind_pairs(const std::vector<std::uint64_t>& words, Change change) {
  States whole;
  for (const std::uint64_t word : words) {
    whole.absorb(word);
  }
  int blind = 0;
  States prefix;
  for (std::size_t a = 0; a < words.size(); prefix.absorb(words[a]), ++a) {
    for (std::size_t b = a + 1; b < words.size(); ++b) {
      std::uint64_t first = words[a];
      std::uint64_t second = words[b];
      change(first, second);
      if (first == words[a] && second == words[b]) {
        continue;
      }
      States states = prefix;
      for (std::size_t i = a; i < words.size(); ++i) {
        states.absorb(i == a ? first : i == b ? second : words[i]);
      }
      blind += any_lane_equal(states, whole) ? 1 : 0;
    }
  }
  return blind;
}

TEST(PageHash, EachLaneSeesEveryPairOfSignFlipsAndSwapsInAStrip) {
  const Content floats = float_content();
  const std::vector<std::uint64_t> samples[] = {{floats.begin(), floats.begin() + 256},
                                                std::vector<std::uint64_t>(256, 0)};
  for (const std::vector<std::uint64_t>& words : samples) {
    for (const std::uint64_t first : {1ull << 63, 1ull << 31, 1ull << 63 | 1ull << 31}) {
      for (const std::uint64_t second : {1ull << 63, 1ull << 31, 1ull << 63 | 1ull << 31}) {
        EXPECT_EQ(blind_pairs(words, [&](auto& a, auto& b) { a ^= first, b ^= second; }), 0);
      }
    }
    EXPECT_EQ(blind_pairs(words, [](auto& a, auto& b) { std::swap(a, b); }), 0);
  }
}

// That the search finds what there is to find.
TEST(PageHash, AWeakHashWouldBeToldByTheSameSearch) {
  const std::vector<std::uint64_t> words(16, 0x3f8000003f800000ull);
  EXPECT_EQ(blind_pairs<WeakState>(words, [](auto& a, auto& b) { a ^= 1ull << 63, b ^= 1ull << 63; }), 16 * 15 / 2);
}

// In neighbouring words every pair of single bits is tried: none cancels in either lane.
TEST(PageHash, EachLaneSeesEveryPairOfBitsInNeighbouringWords) {
  const Content floats = float_content();
  for (const bool zeros : {false, true}) {
    const std::vector<std::uint64_t> words =
        zeros ? std::vector<std::uint64_t>(2, 0) : std::vector<std::uint64_t>(floats.begin(), floats.begin() + 2);
    for (int first = 0; first < 64; ++first) {
      for (int second = 0; second < 64; ++second) {
        EXPECT_EQ(blind_pairs(words, [&](auto& a, auto& b) { a ^= 1ull << first, b ^= 1ull << second; }), 0);
      }
    }
  }
}

} // namespace
} // namespace stillwake
