// SPDX-License-Identifier: Apache-2.0
// The device memory of a wake: what each of its shards lacks, taken as a whole before any of it is mapped, or given
// back. A wake that does not wait for all of it first has a PageSupply instead.
#pragma once

#include "shard/device_groups.h"
#include "shard/shard_core.h"

#include <optional>
#include <vector>

namespace stillwake {

/// A shard that was asleep, what has to be mapped for it, and what is staged.
struct WakePart {
  ShardCore* core = nullptr;
  std::vector<MappedRun> runs;                ///< every page that a live block touches
  std::vector<MappedRun> missing;             ///< of those, what is not backed yet
  std::vector<std::vector<Physical>> handles; ///< by missing run
  std::vector<Extent> extents;

  /// Looks anew at what is not backed.
  void find_missing();
  /// The pages that are backed already: an unmap had failed.
  std::vector<PageRange> backed() const;
};

/// What is missing, by device.
std::vector<DeviceNeed> needs_of(const std::vector<WakePart>& parts);
/// Whether so much is free. A driver that cannot say makes it no.
bool seems_to_fit(const std::vector<WakePart>& parts);
/// Takes all that is missing, or holds nothing on an error. Out of device memory: the owners are asked, and it is tried
/// again until `timeout` is over.
[[nodiscard]] Result<void> take_all(std::vector<WakePart>& parts, Clock& clock, std::optional<Duration> timeout);
/// Maps what was taken; answers how much. On an error what was mapped is among the parts' extents.
[[nodiscard]] Result<Bytes> map_all(std::vector<WakePart>& parts);
/// Unmaps and releases everything that was taken for the parts. What will not be unmapped stays with its shard.
void give_memory_back(std::vector<WakePart>& parts);

} // namespace stillwake
