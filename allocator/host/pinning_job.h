// SPDX-License-Identifier: Apache-2.0
// A MirrorPinningJob populates and pins the pieces that an arrange adds to its mirror. Its units are parts of pieces:
// whoever finishes a piece's last part pins the piece. After the first error nothing more is populated or pinned.
//
// A piece is: waiting (parts of it are to be populated, or it is being pinned) -> pinned, or -> abandoned.
#pragma once

#include "allocator/host/mirror.h"
#include "allocator/host/pinning_workers.h"

#include <condition_variable>
#include <optional>
#include <sys/types.h>

namespace stillwake {

class MirrorPinningJob final : public PinningJob, private PinningWork {
public:
  /// `add` is opened in the mirror, and paid for.
  MirrorPinningJob(Mirror& mirror, std::span<const PageRange> add);
  ~MirrorPinningJob() override;

  Result<void> wait_for(Pages page) override;
  Result<void> finish() override;
  void tell(PinnedSink* sink) override;
  bool pins_anything() const override { return !units_.empty(); }

private:
  enum class State { kWaiting, kPinned, kAbandoned };
  struct Piece {
    PageRange range;
    std::size_t parts_left = 0;
    State state = State::kWaiting;
  };
  struct Unit {
    std::size_t piece;
    PageRange part;
  };

  bool step() override;
  void call_sink(PageRange piece, RankedLock& lock);
  Result<void> populate(PageRange part);
  /// Does units, or waits while others do them, until `done`, which is asked under the lock.
  template <class Done> void work_until(Done done);
  void undo();

  Mirror& mirror_;
  const pid_t process_;
  std::vector<Unit> units_; // const once made
  RankedMutex mutex_{LockRank::kHost};
  std::condition_variable_any changed_;
  // All below guarded by mutex_.
  std::vector<Piece> pieces_;
  std::size_t next_unit_ = 0;
  std::size_t units_done_ = 0;
  std::optional<Error> error_;
  PinnedSink* sink_ = nullptr;
  int in_sink_ = 0;
  bool finished_ = false;    // the transition's thread only
  bool has_threads_ = false; // const once made
};

} // namespace stillwake
