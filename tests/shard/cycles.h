// SPDX-License-Identifier: Apache-2.0
// Cycles is a long life of one shard: sleep and wake with random frees and allocations between, and what must stay
// flat meanwhile.
#pragma once

#include "tests/shard/stream_work.h"

namespace stillwake {

class Cycles : public ShardWork {
public:
  static inline int count = 60; // set by main

protected:
  void run();
};

} // namespace stillwake
