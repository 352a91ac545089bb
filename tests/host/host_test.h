// SPDX-License-Identifier: Apache-2.0
// A HostTest is the fixture of tests of pinned host memory: an emulated driver, an arena, and the few things that they
// say again and again. What the system holds for the process is read from /proc.
#pragma once

#include "allocator/host/host.h"
#include "tests/driver/emulated_driver.h"

#include <cstring>
#include <fstream>
#include <memory>
#include <unistd.h>
#include <vector>

namespace stillwake {

inline PageRange range(std::uint64_t first, std::uint64_t count) { return {Pages(first), Pages(count)}; }
using Ranges = std::vector<PageRange>;

/// Resident bytes of this process.
inline Bytes resident() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t pages = 0;
  statm >> total >> pages;
  return Bytes(pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
}

class HostTest : public EmulatedDriver {
protected:
  void SetUp() override {
    EmulatedDriver::SetUp();
    if (!HasFatalFailure()) {
      make_arena({});
    }
  }
  void TearDown() override {
    arena_.reset();
    if (driver_) {
      EXPECT_EQ(registrations(), 0u);
    }
  }

  void make_arena(HostArenaOptions options) { arena_ = std::make_unique<HostArena>(options); }
  std::unique_ptr<Mirror> make_mirror(std::uint64_t pages = 1024) {
    auto mirror = Mirror::create(*arena_, *device_, Bytes(Pages(pages)));
    EXPECT_TRUE(mirror) << mirror.error().describe();
    return std::move(*mirror);
  }

  static Result<void> arrange(Mirror& mirror, const Ranges& wanted, std::uint64_t slack = 0) {
    auto job = mirror.arrange(wanted, Pages(slack));
    STILLWAKE_TRY(job);
    return (*job)->finish();
  }
  static void must_arrange(Mirror& mirror, const Ranges& wanted, std::uint64_t slack = 0) {
    const auto arranged = arrange(mirror, wanted, slack);
    ASSERT_TRUE(arranged) << arranged.error().describe();
    mirror.check_invariants();
  }

  /// Writes words that no other page has all over the pages; `holds` compares them.
  static void fill(Mirror& mirror, PageRange pages, std::uint64_t seed) {
    for_each_word(mirror, pages, [seed](std::uint64_t& word, std::uint64_t at) { word = seed * 1000003 + at; });
  }
  static bool holds(Mirror& mirror, PageRange pages, std::uint64_t seed) {
    bool same = true;
    for_each_word(mirror, pages,
                  [&](std::uint64_t& word, std::uint64_t at) { same = same && word == seed * 1000003 + at; });
    return same;
  }
  static bool is_zero(Mirror& mirror, PageRange pages) {
    bool zero = true;
    for_each_word(mirror, pages, [&](std::uint64_t& word, std::uint64_t) { zero = zero && word == 0; });
    return zero;
  }

  std::uint64_t registrations() const { return driver_->emulation()->live_registrations(); }
  std::uint64_t calls(CallId call) const { return driver_->gate().calls(call); }

  std::unique_ptr<HostArena> arena_;

private:
  template <class Visit> static void for_each_word(Mirror& mirror, PageRange pages, Visit visit) {
    constexpr std::uint64_t kWords = kPageBytes.count() / 8;
    for (Pages page = pages.first; page < pages.end(); ++page) {
      auto* words = reinterpret_cast<std::uint64_t*>(mirror.at(page));
      for (std::uint64_t at = 0; at < kWords; at += 64) {
        visit(words[at], page.count() * kWords + at);
      }
      visit(words[kWords - 1], page.count() * kWords + kWords - 1);
    }
  }
};

} // namespace stillwake
