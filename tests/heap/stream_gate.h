// SPDX-License-Identifier: Apache-2.0
// A StreamGate holds a stream up from `hold` until `open`: work queued behind it does not start. It may be destroyed at
// any time, which opens it.
#pragma once

#include "allocator/driver/driver_layer.h"

#include <atomic>
#include <memory>

namespace stillwake {

class StreamGate {
public:
  StreamGate() = default;
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;
  ~StreamGate() { open(); }

  void hold(DriverTable& table, Stream stream) {
    auto* share = new std::shared_ptr<std::atomic<bool>>(open_); // the stream's own, given back when it passes
    STILLWAKE_CHECK_EQ(table.cuLaunchHostFunc(stream, &StreamGate::pass, share), CUDA_SUCCESS);
  }
  void open() {
    *open_ = true;
    open_->notify_all();
  }

private:
  static void pass(void* pointer) {
    const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> share(
        static_cast<std::shared_ptr<std::atomic<bool>>*>(pointer));
    (*share)->wait(false);
  }
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

} // namespace stillwake
