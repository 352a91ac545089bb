// SPDX-License-Identifier: Apache-2.0
// A Shard is a named set of allocations on one device that sleeps and wakes as one. Its addresses are reserved once and
// never change; only what lies behind them comes and goes.
#pragma once

#include "../allocator/base/kept_at_exit.h"
#include "../allocator/base/result.h"
#include "../allocator/driver/driver.h"
#include "../allocator/heap/block_kind.h"
#include "options.h"

#include <memory>

namespace stillwake {

class ShardCore;

/// The states, and what each allows. free is allowed in every state: it is never more than a note where it cannot be
/// carried out at once.
///   kAwake        allocate, use, sleep, swap out, prepare, trim
///   kSealed       a sleep is under way: allocate answers busy
///   kStagedSleep  copied, still mapped: commit or abandon
///   kAsleep       wake, swap in, trim, read the host copy; allocate answers asleep
///   kStagedWake   mapped, nothing restored: commit or abandon
///   kWaking       use where the ticket says ready, allocate (the stream waits for all); sleep answers busy
///   kCorrupted    a wake's verdict was bad: the backing is kept; use at your own risk, free; no sleep, no allocate
///   kLost         the device's context is dead: free, destroy
enum class ShardState { kAwake, kSealed, kStagedSleep, kAsleep, kStagedWake, kWaking, kCorrupted, kLost };
const char* to_string(ShardState state);

struct ShardStats {
  std::uint64_t blocks = 0; ///< live
  Bytes allocated;          ///< in live blocks
  Bytes mapped;             ///< physical bytes behind addresses now
  Bytes reserved_addresses;
  Bytes host_pinned;         ///< of this shard
  std::uint64_t handles = 0; ///< physical allocations held
  std::uint64_t queued_frees = 0;
  std::uint64_t sleeps = 0;
  std::uint64_t wakes = 0;
};

/// After it was moved from, a Shard may be destroyed and assigned to; `is_open` answers false, every call that answers
/// a Result says kInvalidArgument, as does a set that holds it, and every other call ends the process with a sentence.
class Shard {
public:
  /// Reserves the addresses; takes no device memory, but for 2 MiB of scratch that the first shard of a device takes
  /// for all (a full device must not stop a sleep). The driver outlives the shard and stays at one address. Errors:
  /// kInvalidArgument (an empty name, a device that does not exist, a peer that cannot access the device's memory,
  /// trust without frozen, an odd size), kDriverTooOld, kOutOfHostMemory (addresses), kLost.
  [[nodiscard]] static Result<Shard> create(Driver& driver, ShardOptions options);

  Shard(Shard&&) noexcept;
  Shard& operator=(Shard&&) noexcept;
  /// Waits for a transition and for the device, then gives everything back. Live blocks (logged with their count and
  /// bytes) and a sleeping shard are no error: their addresses simply end. Once the process is exiting it does and
  /// waits for nothing, whatever another thread is doing: so ends a static shard that was in use.
  ~Shard();

  /// A block of at least `size` bytes (1 or more), aligned to 512, for use on `stream` at once and on others after the
  /// usual event. The content is undefined. Any thread, any number at once.
  /// Errors: kInvalidArgument (0 bytes; more than the reservation; a stream of another device), kOutOfDeviceMemory,
  /// kOutOfHostMemory (no addresses left in the process), kAsleep, kBusy (a transition is under way; or a wake, and the
  /// stream is capturing), kCorrupted, kLost. Failure changes nothing.
  [[nodiscard]] Result<void*> allocate(Bytes size, Stream stream = nullptr, BlockKind kind = BlockKind::kShared);

  /// Gives a block back; any thread, any state, never waits. Its memory is for later blocks of this shard: the device
  /// gets it back at the next sleep (a wake takes memory for live blocks only) or when the shard ends. `stream`: where
  /// its last work was queued. Without it all work queued on the device so far is assumed to use the block. Errors:
  /// kInvalidArgument for a pointer that no live block of this shard starts at (a foreign one, a double free), and for
  /// a stream of another device, or none: then the block is not freed.
  [[nodiscard]] Result<void> free(void* pointer);
  [[nodiscard]] Result<void> free(void* pointer, Stream stream);

  /// Whether it owns a shard: false once it was moved from.
  bool is_open() const { return core_ != nullptr; }
  const std::string& name() const;
  DeviceIndex device() const;
  Policy policy() const;
  /// Asks the verdict of a wake that has ended, without waiting.
  ShardState state() const;
  ShardStats stats() const;
  /// Whether the address lies in this shard's reservation.
  bool contains(const void* pointer) const;
  /// The first address of the reservation, which has ShardStats::reserved_addresses bytes.
  const void* first_address() const;

  /// Pins host memory for what is live now, so that the next sleep only copies. Awake only. kBackground returns at
  /// once; the next transition waits for it, and its errors come from there. Errors: kAsleep, kBusy, kOverBudget,
  /// kOutOfHostMemory (without a thread for the background, too: then nothing has happened).
  enum class Prepare { kForeground, kBackground };
  [[nodiscard]] Result<void> prepare(Prepare how = Prepare::kForeground);
  /// Gives pinned memory that no sleeping page needs back to the system, in whole pieces; answers the bytes. Asleep
  /// that is what freed blocks held, and zero pages that were pinned before they were known to be zeros. Device memory
  /// is not touched. Errors: kBusy, kLost.
  [[nodiscard]] Result<Bytes> trim();

  /// Where the bytes at `pointer` (a device address of a live block) are kept while asleep. kReadable shards only.
  /// Valid until the next wake, or a trim once the block is freed. Errors: kInvalidArgument, kBusy (not asleep).
  [[nodiscard]] Result<std::byte*> host_address(const void* pointer) const;
  /// Says that the host copy of [pointer, pointer + size) was written: it is restored, never "unchanged", and reported
  /// unverified. Asleep only. Errors as host_address.
  [[nodiscard]] Result<void> mark_host_dirty(const void* pointer, Bytes size);

  // For the layers above.
  ShardCore& core() const;

private:
  Result<void> check_usable() const;
  explicit Shard(std::unique_ptr<ShardCore> core);
  KeptAtExit<ShardCore> core_;
};

} // namespace stillwake
