// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/driver_settings.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace stillwake {
namespace {

constexpr int kMostDevices = 64;
constexpr std::size_t kLongestShare = 64;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

tl::unexpected<Error> wrong(const std::string& what, const std::string& value, const std::string& right) {
  return failure(ErrorCode::kInvalidArgument, what + " is '" + value + "'; write " + right);
}

Result<void> settle_kind(const DriverOptions& options, DriverSettings& settings) {
  const char* name = "STILLWAKE_DRIVER";
  if (options.kind) {
    settings.kind = *options.kind;
    if (settings.kind != DriverKind::kCuda && settings.kind != DriverKind::kEmulated) {
      return wrong("DriverOptions::kind", std::to_string(static_cast<int>(settings.kind)),
                   "DriverKind::kCuda (0) or DriverKind::kEmulated (1)");
    }
  } else if (const auto text = variable(name)) {
    if (*text == "cuda") {
      settings.kind = DriverKind::kCuda;
    } else if (*text == "emulated") {
      settings.kind = DriverKind::kEmulated;
    } else {
      return wrong(name, *text, "cuda or emulated");
    }
  }
  return {};
}

Result<void> settle_devices(const DriverOptions& options, DriverSettings& settings) {
  std::string from = "DriverOptions::emulated_devices";
  std::string value;
  bool readable_number = true;
  if (options.emulated_devices) {
    settings.emulated_devices = *options.emulated_devices;
    value = std::to_string(settings.emulated_devices);
  } else if (const auto text = variable("STILLWAKE_EMULATED_DEVICES")) {
    from = "STILLWAKE_EMULATED_DEVICES";
    value = *text;
    const char* end = value.data() + value.size();
    const auto [rest, failed] = std::from_chars(value.data(), end, settings.emulated_devices);
    readable_number = failed == std::errc{} && rest == end;
  }
  if (!readable_number || settings.emulated_devices < 1 || settings.emulated_devices > kMostDevices) {
    return wrong(from, value, "a number of devices from 1 to " + std::to_string(kMostDevices));
  }
  return {};
}

Result<void> settle_memory(const DriverOptions& options, DriverSettings& settings) {
  const std::string right = "a size of 2MiB to 1TiB, as in 8GiB, 512MiB or 4194304";
  const auto possible = [](Bytes size) { return kPageBytes <= size && size <= kGiB * 1024; };
  if (options.emulated_memory) {
    settings.emulated_memory = *options.emulated_memory;
    if (!possible(settings.emulated_memory)) {
      return wrong("DriverOptions::emulated_memory", exact(settings.emulated_memory), right);
    }
  } else if (const auto text = variable("STILLWAKE_EMULATED_MEMORY")) {
    const Result<Bytes> size = parse_bytes(*text);
    if (!size || !possible(*size)) {
      return wrong("STILLWAKE_EMULATED_MEMORY", *text, right);
    }
    settings.emulated_memory = *size;
  }
  return {};
}

// The share's name becomes part of a file name.
Result<void> settle_share(const DriverOptions& options, DriverSettings& settings) {
  std::string from = "DriverOptions::emulated_share";
  if (options.emulated_share) {
    settings.emulated_share = *options.emulated_share;
  } else if (const auto text = variable("STILLWAKE_EMULATED_SHARE")) {
    from = "STILLWAKE_EMULATED_SHARE";
    settings.emulated_share = *text;
  }
  const std::string_view allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  if (settings.emulated_share.size() > kLongestShare ||
      settings.emulated_share.find_first_not_of(allowed) != std::string::npos) {
    return wrong(from, settings.emulated_share,
                 "a name of 1 to " + std::to_string(kLongestShare) + " letters, digits, '_' and '-'");
  }
  return {};
}

Result<void> settle_faults(const DriverOptions& options, DriverSettings& settings) {
  std::string from = "DriverOptions::faults";
  std::string text;
  if (options.faults) {
    text = *options.faults;
  } else if (const auto value = variable("STILLWAKE_FAULTS")) {
    from = "STILLWAKE_FAULTS";
    text = *value;
  }
  Result<std::vector<Fault>> faults = CallGate::parse(text);
  if (!faults) {
    return failure(ErrorCode::kInvalidArgument, from + ": " + faults.error().message);
  }
  settings.faults = std::move(*faults);
  return {};
}

} // namespace

Result<DriverSettings> settle(const DriverOptions& options) {
  DriverSettings settings;
  STILLWAKE_TRY(settle_kind(options, settings));
  STILLWAKE_TRY(settle_devices(options, settings));
  STILLWAKE_TRY(settle_memory(options, settings));
  STILLWAKE_TRY(settle_share(options, settings));
  STILLWAKE_TRY(settle_faults(options, settings));
  return settings;
}

} // namespace stillwake
