// SPDX-License-Identifier: Apache-2.0
// An EnvironmentScope sets one variable for a test and puts the old value back.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace stillwake {

class EnvironmentScope {
public:
  /// A null value removes the variable.
  EnvironmentScope(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) {
      old_ = old;
    }
    set(value);
  }
  ~EnvironmentScope() { set(old_ ? old_->c_str() : nullptr); }
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;

private:
  void set(const char* value) {
    if (value != nullptr) {
      setenv(name_, value, 1);
    } else {
      unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

} // namespace stillwake
