// SPDX-License-Identifier: Apache-2.0
// An ExtentMap holds the physical memory behind one shard's addresses: extents, in address order. It puts memory there
// (for a heap that grows, for a wake) and takes it away (for a sleep); when that happens is decided elsewhere.
//
// Touched under the heap's central lock while the shard is awake, by the holder of the transition otherwise. The counts
// may be read from any thread.
#pragma once

#include "allocator/heap/heap_layer.h"
#include "allocator/memory/memory.h"
#include "shard/live_pages.h"
#include "shard/report.h"

#include <atomic>

namespace stillwake {

/// One handle, and where it is mapped. The mapping goes before the handle does.
struct Extent {
  PageRange pages;
  Physical physical;
  Mapping mapping;
};

/// Handles of a wake are 512 MiB at most. Large ones make the calls few: mapping 20 GiB and giving access to it takes 2
/// ms in handles of 512 MiB, 4 ms in 256 MiB. Larger ones gain little more and would not fit through a swap's margin.
constexpr Pages kLargestExtent{256};
/// What a heap grows by at most.
constexpr Pages kLargestGrowth{128};

/// Takes `count` pages of the device in handles as large as it has, down to one page. kOutOfDeviceMemory says needed,
/// free and largest possible bytes; nothing is held then.
[[nodiscard]] Result<std::vector<Physical>> take_pages(Device& device, Pages count);
/// The same for pages of one kind: those of a block on one handle are one, or nothing.
[[nodiscard]] Result<std::vector<Physical>> take_run(Device& device, Pages count, BlockKind kind);

class ExtentMap {
public:
  /// `reservation` outlives it. `devices` get access: the own one and the peers.
  ExtentMap(Reservation& reservation, std::vector<DeviceIndex> devices);

  /// For the heap: see ExtentSource::back. Extents start at 2 MiB and double to 256 MiB.
  [[nodiscard]] Result<PageRange> grow(PageRange hole, Pages at_least, BlockKind kind);

  /// Maps handles behind neighbouring pages from `first` on, and gives access. On failure nothing stays mapped.
  [[nodiscard]] Result<std::vector<Extent>> place(Pages first, std::vector<Physical> handles);
  /// Takes extents over.
  void add(std::vector<Extent> extents);
  /// Undoes `place`: unmaps and releases. What will not go is kept here, so that nothing is lost track of.
  void take_back(std::vector<Extent> extents);

  /// Unmaps everything that will go, a run of neighbours in one call. The first unmap of all (`*any_unmapped` false)
  /// may fail with an error: nothing has happened then. From there on it only goes forward, and lists what stays.
  [[nodiscard]] Result<void> unmap_all(const std::string& shard, bool* any_unmapped, Report& report);
  /// Releases what is unmapped; what will not go is listed and tried again next time.
  void release_all(const std::string& shard, Report& report);

  /// Unmaps the extent with the lowest address and hands its handle over, with the pages it was behind. On failure it
  /// stays as it was.
  [[nodiscard]] Result<std::pair<PageRange, Physical>> detach_first();
  /// Keeps handles that could not be released, for the next release_all.
  void keep_unreleased(std::vector<Physical> handles);
  const std::vector<Extent>& extents() const { return extents_; }
  /// Whether memory is behind the page.
  bool is_backed(Pages page) const;
  Bytes mapped() const { return Bytes(Pages(mapped_pages_.load())); }
  std::uint64_t handles() const { return handles_.load(); }

private:
  void count();
  std::size_t end_of_run(std::size_t begin) const;
  Result<void> unmap_run(std::size_t begin, std::size_t end);

  Reservation& reservation_;
  std::vector<DeviceIndex> devices_;
  std::vector<Extent> extents_;      // by address; none overlap
  std::vector<Physical> unreleased_; // unmapped, but the release failed: tried again by the next release_all
  Pages next_growth_{1};
  std::atomic<std::uint64_t> mapped_pages_{0};
  std::atomic<std::uint64_t> handles_{0};
};

} // namespace stillwake
