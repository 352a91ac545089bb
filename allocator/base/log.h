// SPDX-License-Identifier: Apache-2.0
// The one log hook: a function and its context. The library writes nothing anywhere by itself.
#pragma once

namespace stillwake {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Called from any thread, never while a lock of the hot path is held. The text lives only for the call.
struct LogHook {
  void (*write)(void* context, LogLevel level, const char* text) = nullptr;
  void* context = nullptr;

  void operator()(LogLevel level, const char* text) const {
    if (write != nullptr) {
      write(context, level, text);
    }
  }
};

} // namespace stillwake
