// SPDX-License-Identifier: Apache-2.0
// What a static object owns while the process exits. Another thread may be in the middle of a call on that object, so
// its destructor may not write to it: std::unique_ptr would.
#pragma once

#include "process_exit.h"

#include <cstddef>
#include <memory>
#include <utility>

namespace stillwake {

/// A unique_ptr, but for its end once the driver is out of reach: then the object is kept for ever with its locks and
/// threads, within reach of leak checkers, and the owner is read and not written.
template <class T> class KeptAtExit {
public:
  explicit KeptAtExit(std::unique_ptr<T> owned) noexcept : owned_(owned.release()) {}
  KeptAtExit(KeptAtExit&& other) noexcept : owned_(std::exchange(other.owned_, nullptr)) {}
  KeptAtExit& operator=(KeptAtExit&& other) noexcept {
    KeptAtExit taken(std::move(other));
    std::swap(owned_, taken.owned_);
    return *this;
  }
  ~KeptAtExit() {
    if (driver_is_out_of_reach()) {
      keep_within_reach(owned_);
    } else {
      const std::unique_ptr<T> ends_here(owned_);
    }
  }

  T* get() const { return owned_; }
  T& operator*() const { return *owned_; }
  T* operator->() const { return owned_; }
  explicit operator bool() const { return owned_ != nullptr; }
  bool operator==(std::nullptr_t) const { return owned_ == nullptr; }
  bool operator!=(std::nullptr_t) const { return owned_ != nullptr; }

private:
  T* owned_;
};

} // namespace stillwake
