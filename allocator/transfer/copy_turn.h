// SPDX-License-Identifier: Apache-2.0
// A CopyTurn holds off new pins of the tasks' arena while its owner queues work; it is ended before he waits.
#pragma once

#include "allocator/transfer/page_task.h"

#include <span>

namespace stillwake {

class CopyTurn {
public:
  explicit CopyTurn(std::span<const SaveTask> tasks) {
    for (const SaveTask& task : tasks) {
      if (task.pinning != nullptr) {
        pinning_ = task.pinning; // all pieces of all jobs are pinned in one arena: any of them stands for it
        break;
      }
    }
    begin();
  }
  ~CopyTurn() { end(); }
  CopyTurn(const CopyTurn&) = delete;
  CopyTurn& operator=(const CopyTurn&) = delete;

  void begin() {
    if (pinning_ != nullptr && !begun_) {
      pinning_->begin_copy();
      begun_ = true;
    }
  }
  void end() {
    if (begun_) {
      pinning_->end_copy();
      begun_ = false;
    }
  }

private:
  PinningJob* pinning_ = nullptr;
  bool begun_ = false;
};

} // namespace stillwake
