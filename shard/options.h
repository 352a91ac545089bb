// SPDX-License-Identifier: Apache-2.0
// What can be asked of a shard and of a transition, and what a shard's owner may plug in.
#pragma once

#include "../allocator/base/clock.h"
#include "../allocator/base/units.h"

#include <optional>
#include <string>
#include <vector>

namespace stillwake {

/// What sleep owes to the content.
enum class Policy {
  kPreserve, ///< comes back byte for byte
  kDiscard,  ///< is not copied; comes back zeroed
  kFrozen,   ///< is kept, and promised not to change after the first sleep; hashed all the same unless trusted
};

/// Whether the backing in host memory can be read while the shard sleeps.
enum class HostCopy {
  kPacked,   ///< may be encoded (zero pages are not copied)
  kReadable, ///< raw bytes of every live page, at the page's own offset in the mirror
};

/// What becomes of the backing after a verified wake.
enum class Backing {
  kRetain,  ///< kept for the next sleep, within the budget: pages that did not change are not copied again
  kRelease, ///< unpinned and returned to the system
};

/// A part of a block that is in use.
struct LiveRange {
  Bytes offset = {}; ///< from the block's start
  Bytes size = {};
};

struct BlockLiveRanges {
  const void* block = nullptr; ///< as allocate returned it
  std::vector<LiveRange> ranges = {};
};

/// What the owner of a shard's blocks knows and Stillwake cannot. Called by the thread that asks for the transition,
/// before any lock of ours is taken. It outlives the shard.
class ShardOwner {
public:
  virtual ~ShardOwner() = default;

  /// The live ranges of blocks that are partly in use. A block that is not named is live as a whole. An empty list for
  /// a block means that nothing in it is live. Until the transition returns the owner changes nothing about them.
  virtual std::vector<BlockLiveRanges> live_ranges() { return {}; }
  /// Whether any stream of the device is being captured; unset when the owner cannot know. Asked by threads that
  /// allocate and free, too, before an event is recorded on the whole context: that would spoil a capture.
  virtual std::optional<bool> is_capturing(DeviceIndex) { return std::nullopt; }
  /// A wake or a swap lacks `needed` bytes on the device: gives memory up if it can (a cache) and says whether it did.
  virtual bool memory_is_short(DeviceIndex, Bytes /*needed*/) { return false; }
};

struct ShardOptions {
  std::string name = {};   ///< 1 to 256 bytes without control characters; for messages
  DeviceIndex device = {}; ///< must exist
  Policy policy = Policy::kPreserve;
  HostCopy host_copy = HostCopy::kPacked;
  Backing backing = Backing::kRetain;
  bool trust = false; ///< kFrozen only: unchanged without being hashed
  /// Size of the reservation, 2 MiB to 2 TiB (less one page); unset: as much as the device has memory.
  std::optional<Bytes> addresses = {};
  std::vector<DeviceIndex> peers = {}; ///< other devices that may read and write the shard; each must be able to
  ShardOwner* owner = nullptr;
};

struct SleepOptions {
  std::optional<Duration> timeout = {}; ///< for the work in flight, 0 or more; unset waits for ever
  bool checked = false;                 ///< quiesce and hash again before the commit; a difference is kBusy
  /// Streams that exist and may be capturing: asked first, so that a capture is refused and not spoilt. Stillwake keeps
  /// no streams by itself: the driver crashes when it is asked about one that was destroyed. A capture that nobody
  /// showed is refused as well, but the driver ends it.
  std::vector<Stream> may_capture = {};
};

/// A range that is wanted early, of 1 byte or more, in one shard of the set (which may be awake already).
struct WakeFirst {
  const void* pointer = nullptr;
  Bytes size = {};
};

struct WakeOptions {
  std::optional<Duration> timeout = {}; ///< to wait for device memory, 0 or more; unset does not wait
  Bytes chunk = kMiB * 128;             ///< 64 MiB to 256 MiB; the first chunks are smaller
  std::vector<WakeFirst> first = {};    ///< restored before everything else, in this order; then the set's order
};

} // namespace stillwake
