// SPDX-License-Identifier: Apache-2.0
// WorkEpochs knows when work that was queued before a point in time is done. An epoch is one event: on one stream,
// recorded inside the very call that names it (a stream that is kept could have been destroyed since), or on everything
// queued in the device's context so far. Events are pooled and at most kMostOpen epochs are open at once.
//
// record_on: any thread. All else: under the heap's central lock.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/heap/space_map.h"

#include <optional>
#include <vector>

namespace stillwake {

class WorkEpochs {
public:
  static constexpr std::size_t kMostOpen = 64;

  explicit WorkEpochs(Device& device) : device_(device) {}

  /// An event on what `stream` has queued so far. Nothing: the stream is capturing, or the driver refused.
  std::optional<OwnedEvent> record_on(Stream stream);

  bool has_room() const { return open_.size() < kMostOpen; }
  bool any_open() const { return !open_.empty(); }
  /// An epoch that is over when `event` is done.
  Epoch open(OwnedEvent event);
  /// An epoch of everything that the context has queued so far. Nothing: the driver cannot, or refused.
  std::optional<Epoch> open_all();
  /// A number later than every epoch so far, for work that the caller waits for himself.
  Epoch next() { return ++last_; }
  /// Makes `stream` wait for an open epoch; the host does not wait.
  bool make_wait(Epoch epoch, Stream stream);
  /// Epochs that are over, in order; each is told once.
  std::vector<Epoch> take_done();
  /// All work is done: no epoch is open any more.
  void close_all();

  /// Takes back an event that is not needed after all. Any thread.
  void give_event(OwnedEvent event);

private:
  struct OpenEpoch {
    Epoch epoch;
    OwnedEvent event;
  };
  std::optional<OwnedEvent> take_event();

  Device& device_;
  Epoch last_ = 0;
  std::vector<OpenEpoch> open_; ///< in order
  RankedMutex pool_mutex_{LockRank::kFreeQueue};
  std::vector<OwnedEvent> pool_; // guarded by pool_mutex_
};

} // namespace stillwake
