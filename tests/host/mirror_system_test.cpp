// SPDX-License-Identifier: Apache-2.0
// What the system holds for a mirror: resident memory, huge pages, children made by fork.
#include "tests/host/host_test.h"

#include <cerrno>
#include <sys/prctl.h>
#include <sys/wait.h>

namespace stillwake {
namespace {

class MirrorSystem : public HostTest {};

/// One row of the mapping that holds `address`, in bytes, from /proc/self/smaps.
Bytes smaps(const void* address, const std::string& row) {
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long long first = 0;
    unsigned long long end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &first, &end) == 2) {
      const auto at = reinterpret_cast<std::uintptr_t>(address);
      inside = first <= at && at < end;
    } else if (inside && line.rfind(row + ":", 0) == 0) {
      return kKiB * std::stoull(line.substr(row.size() + 1));
    }
  }
  return Bytes(0);
}

TEST_F(MirrorSystem, FrD3_ClearGivesTheMemoryBack) {
  auto mirror = make_mirror();
  const Bytes before = resident();
  must_arrange(*mirror, {range(0, 100), range(200, 28)}); // 256 MiB
  EXPECT_GT(resident(), before + kMiB * 250);
  ASSERT_TRUE(mirror->clear());
  EXPECT_LT(resident(), before + kMiB * 64);
  mirror->check_invariants();
}

TEST_F(MirrorSystem, FrD3_GivenUpPagesGoBackAtOnce) {
  auto mirror = make_mirror();
  must_arrange(*mirror, {range(0, 128)});
  const Bytes full = resident();
  must_arrange(*mirror, {range(0, 10), range(100, 6)});
  EXPECT_LT(resident() + kMiB * 200, full);
}

TEST_F(MirrorSystem, PinnedPiecesAreResidentWholly) {
  auto mirror = make_mirror();
  must_arrange(*mirror, {range(3, 17)});
  EXPECT_EQ(smaps(mirror->at(Pages(3)), "Size"), Bytes(Pages(17)));
  EXPECT_EQ(smaps(mirror->at(Pages(3)), "Rss"), Bytes(Pages(17)));
}

TEST_F(MirrorSystem, WithoutHugePagesItWorksAllTheSame) {
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  auto mirror = make_mirror();
  must_arrange(*mirror, {range(0, 8)});
  const Bytes huge = smaps(mirror->at(Pages(0)), "AnonHugePages");
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
  EXPECT_EQ(huge, Bytes(0));
  fill(*mirror, range(0, 8), 5);
  must_arrange(*mirror, {range(0, 9)});
  EXPECT_TRUE(holds(*mirror, range(0, 8), 5));
}

/// Runs `body` in a child made by fork and answers its exit status.
template <class Body> int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Whether this process can read the byte: asked of the system, so that it is no crash when it cannot.
bool is_readable(const std::byte* address) {
  int ends[2];
  if (pipe(ends) != 0) {
    return false;
  }
  const bool readable = write(ends[1], address, 1) == 1 || errno != EFAULT;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

TEST_F(MirrorSystem, AChildHasNothingOfItAndEveryCallIsInert) {
  make_arena({.budget = std::nullopt, .pinning_threads = 4});
  auto mirror = make_mirror();
  must_arrange(*mirror, {range(0, 8), range(20, 4)});
  must_arrange(*mirror, {range(0, 8), range(20, 5)}); // one was unpinned and pinned anew
  fill(*mirror, range(0, 8), 6);
  auto buffer = PinnedBuffer::create(*device_, kKiB * 4);
  ASSERT_TRUE(buffer);
  const int status = in_child([&] {
    const bool there = is_readable(mirror->at(Pages(0))) || is_readable(mirror->at(Pages(20))) ||
                       is_readable(mirror->at(Pages(500))) || is_readable(buffer->data());
    const bool refused = !arrange(*mirror, {range(0, 9)});
    const bool cleared = mirror->clear().has_value();
    mirror.reset();
    *buffer = PinnedBuffer();
    arena_.reset();
    return (there ? 1 : 0) + (refused ? 0 : 2) + (cleared ? 0 : 4);
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_readable(mirror->at(Pages(0))));
  EXPECT_TRUE(holds(*mirror, range(0, 8), 6));
  EXPECT_EQ(registrations(), 3u);
}

TEST_F(MirrorSystem, AForkWhileAJobRunsIsHarmless) {
  make_arena({.budget = std::nullopt, .pinning_threads = 2});
  auto mirror = make_mirror();
  const Ranges wanted = {range(0, 16), range(16, 16), range(32, 16)};
  auto job = mirror->arrange(wanted, Pages(0));
  ASSERT_TRUE(job);
  EXPECT_EQ(in_child([&] { return (*job)->wait_for(Pages(40)) || (*job)->finish() ? 1 : 0; }), 0);
  ASSERT_TRUE((*job)->finish());
  EXPECT_EQ(mirror->pieces(), wanted);
}

} // namespace
} // namespace stillwake
