// SPDX-License-Identifier: Apache-2.0
// A Report says what a transition did, as a value and as one readable line. Figures come from our own accounting.
#pragma once

#include "../allocator/base/clock.h"
#include "../allocator/base/units.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stillwake {

/// One step of a transition: the host time spent in it, and the bytes it worked on (0: not by bytes). Steps may run at
/// once (a wake creates and maps later pages, and queues their copies, while earlier ones are restored): their sum may
/// be more than the whole.
struct ReportStep {
  std::string name;
  Duration took{0};
  Bytes bytes;

  /// 1e9 bytes a second; 0 where the step moved none.
  double gigabytes_per_second() const;
};

/// Memory that a sleep could not give back; sleeping again tries again.
struct NotFreed {
  std::string shard;
  const void* address = nullptr; ///< null: unmapped already, the handle was not released
  Bytes size;
  std::string why;
};

struct Report {
  enum class Kind { kSleep, kWake, kSwap };
  Kind kind = Kind::kSleep;

  std::uint64_t shards = 0;       ///< in the set
  std::uint64_t shards_moved = 0; ///< that changed their state; 0 is a no-op
  Bytes live;                     ///< in pages that a live range touches; of a wake, that a live block touches
  Bytes copied;                   ///< over the bus
  Bytes unchanged;                ///< not copied: equal to a backing that was still valid
  Bytes trusted;                  ///< not copied and not hashed: frozen and trusted
  Bytes zero;                     ///< not copied: zeros
  Bytes discarded;                ///< not copied: the policy is discard
  Bytes mapped;                   ///< wake: physical bytes put behind the addresses
  Bytes freed;                    ///< sleep: physical bytes given back
  Bytes not_freed;
  Bytes host_pinned;        ///< pinned by the set after the transition
  std::uint64_t copies = 0; ///< copy calls
  bool verified = false;    ///< wake: every restored page was compared with its digest
  std::vector<NotFreed> leftovers;
  std::vector<ReportStep> steps;
  Duration took{0};

  bool is_no_op() const { return shards_moved == 0; }
  /// "sleep: 2 shards, 20.00 GiB live, 20.00 GiB copied ... 0.395 s (54.4 GB/s)". One line, no newline.
  std::string line() const;
};

} // namespace stillwake
