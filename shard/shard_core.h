// SPDX-License-Identifier: Apache-2.0
// A ShardCore is what a Shard is inside: a reservation, the extents behind it, the heap that hands it out, the mirror
// that keeps it while it sleeps, and ONE state. It decides nothing about transitions: stages do, while they hold it.
//
// Who holds the transition (begin_transition) may change the state, and, while the heap is sealed, extents, page table
// and mirror. allocate and free need no hold.
#pragma once

#include "shard/extent_map.h"
#include "shard/page_table.h"
#include "shard/registry.h"
#include "shard/shard.h"

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

namespace stillwake {

class Waking;

class ShardCore final : public ExtentSource {
public:
  [[nodiscard]] static Result<std::unique_ptr<ShardCore>> create(Driver& driver, ShardOptions options);
  ~ShardCore() override;

  // Any thread.
  [[nodiscard]] Result<void*> allocate(Bytes size, Stream stream, BlockKind kind);
  [[nodiscard]] Result<void> free(void* pointer, std::optional<Stream> stream);
  ShardState state();
  ShardStats stats() const;
  [[nodiscard]] Result<void> prepare(Shard::Prepare how);
  [[nodiscard]] Result<Bytes> trim();
  [[nodiscard]] Result<std::byte*> host_address(const void* pointer) const;
  [[nodiscard]] Result<void> mark_host_dirty(const void* pointer, Bytes size);
  /// Takes the transition of a shard that is awake, in none, and keeps something for its next sleep; else answers
  /// false. Never waits. Then `give_up_retained` is owed.
  bool hold_retained();
  /// Unpins what is kept for the next sleep and ends the transition, after which the shard may be gone.
  bool give_up_retained();

  /// Takes the one transition of this shard; waits for a background prepare and reports its error once. kBusy
  /// otherwise.
  [[nodiscard]] Result<void> begin_transition();
  void end_transition();

  // Only by the holder of the transition.

  void set_state(ShardState state) { state_ = state; }
  void set_waking(std::shared_ptr<Waking> waking);
  void forget_waking(const Waking& over);
  /// After a call that answered kLost: the state is kLost if it was this shard's device.
  void ask_whether_lost();
  void count_sleep() { ++sleeps_; }
  void count_wake() { ++wakes_; }
  /// The live pages now: with what the owner told. The heap is sealed.
  [[nodiscard]] Result<LivePages> live_pages(const std::vector<BlockLiveRanges>& told) const;
  /// Makes the mirror hold `wanted` and forgets the backing of pages that it no longer has.
  [[nodiscard]] Result<std::unique_ptr<PinningJob>> arrange_mirror(const std::vector<PageRange>& wanted);
  /// A verified wake is over: awake. Backing that the next sleep has no use for goes back to the system.
  void finish_wake(const std::vector<PageRange>& kept);
  /// Counts the pages that a sleep has kept, at its end; a wake restores as many, or it is kCorrupted.
  /// All of them lie before `end`.
  void note_kept(Pages end) {
    kept_end_ = end;
    kept_ = pages_.kept(end);
  }
  [[nodiscard]] Result<void> check_kept() const;
  /// Forgets the backing of pages that blocks were allocated in since the last sleep: of a trusted shard nobody would
  /// see that it is another block's.
  void forget_unsaved();
  /// After a mirror that could not be arranged: forgets the backing of pages that it lost.
  void forget_unpinned();
  void check_invariants() const;

  // Any thread.

  std::shared_ptr<Waking> waking() const;
  /// The state as it stands, without asking a wake.
  ShardState stored_state() const { return state_; }
  const ShardOptions& options() const { return options_; }
  const std::string& name() const { return options_.name; }
  Registry& registry() const { return registry_; }
  Device& device() const { return device_; }
  /// The own device and the peers.
  const std::vector<Device*>& devices() const { return devices_; }
  /// Whether the stream is one of the own device or of a peer. Errors as Device::owns.
  [[nodiscard]] Result<bool> may_be_used_on(Stream stream, const char* asking) const;
  TransferEngine& engine() const { return engine_; }
  Reservation& reservation() { return reservation_; }
  const Reservation& reservation() const { return reservation_; }
  ExtentMap& extents() { return extents_; }
  Heap& heap() { return *heap_; }
  Mirror& mirror() { return *mirror_; }
  PageTable& pages() { return pages_; }

private:
  ShardCore(Registry& registry, ShardOptions options, std::vector<Device*> devices, TransferEngine& engine,
            Reservation reservation, std::unique_ptr<Mirror> mirror);

  /// At the first use, when the object that owns the shard is complete. If that object is static, the process is known
  /// to be exiting before it is destroyed: no transition of another thread is waited for then, and nothing is called.
  void note_use() {
    if (!in_use_.exchange(true)) {
      watch_for_exit();
    }
  }
  Result<PageRange> back(PageRange hole, Pages at_least, BlockKind kind) override;
  bool a_capture_runs() override;
  bool is_known(Stream stream) const;
  Result<void> get_to_know(Stream stream, const char* doing);
  void note_unsaved(const void* block, Bytes size);
  Result<void*> allocate_unusual(Result<void*> block, Stream stream);
  Result<void> pin_live_pages(const std::vector<BlockLiveRanges>& told);
  /// While asleep: gives back the pinned pieces that no sleeping page needs. The transition is held.
  Result<void> unpin_unneeded();
  Result<Pages> page_of_sleeping(const void* pointer, Bytes size) const;
  Result<void> check_page_kept(Pages page) const;

  Registry& registry_;
  const ShardOptions options_;
  Device& device_;
  const std::vector<Device*> devices_;
  TransferEngine& engine_;
  Reservation reservation_;
  ExtentMap extents_;
  std::unique_ptr<Mirror> mirror_;
  PageTable pages_;
  Pages kept_; ///< by the last sleep, all before kept_end_
  Pages kept_end_;
  std::unique_ptr<Heap> heap_; // after extents_: it asks them for memory

  std::atomic<ShardState> state_{ShardState::kAwake};
  /// Streams that were seen to be the device's: compared only, never given to the driver.
  std::array<std::atomic<Stream>, 8> known_streams_{};
  std::atomic<unsigned> next_known_{0};
  std::atomic<bool> in_transition_{false};
  std::atomic<bool> in_use_{false};  ///< it had memory or a transition
  std::atomic<bool> looking_{false}; ///< a prepare has sealed the heap for a moment
  mutable RankedMutex mutex_{LockRank::kShard};
  std::vector<PageRange> unsaved_;     // guarded by mutex_; of a trusted shard only
  std::shared_ptr<Waking> waking_;     // guarded by mutex_
  std::thread preparing_;              // guarded by mutex_
  std::optional<Error> prepare_error_; // written by preparing_, read after joining it
  std::atomic<std::uint64_t> sleeps_{0};
  std::atomic<std::uint64_t> wakes_{0};
};

/// The error that a shard in this state answers to `what` ("allocating", "sleeping").
Error state_error(const ShardCore& shard, ShardState state, const char* what);

} // namespace stillwake
