// SPDX-License-Identifier: Apache-2.0
// What a plan says of one page: where it is on the device, where its backing is, and how it is (to be) encoded there.
// Encoding is data: a new codec adds a value, not a path.
#pragma once

#include "allocator/host/host.h"
#include "allocator/transfer/page_digest.h"

#include <optional>

namespace stillwake {

enum class PageEncoding : std::uint8_t {
  kNone, ///< no backing: comes back zeroed
  kRaw,  ///< the page's bytes at its place in the mirror
  kZero, ///< known to be zeros: no bytes anywhere
};

/// One live page that a sleep has to keep.
struct SaveTask {
  // In.
  DeviceAddress device;
  std::byte* host = nullptr;       ///< its place in the mirror, 2 MiB
  Pages page;                      ///< its index in the reservation
  std::uint32_t piece = 0;         ///< pages of one pinned piece carry one number: no copy spans two
  PinningJob* pinning = nullptr;   ///< pins it now: the copy follows the pin; null: pinned already
  std::optional<PageDigest> known; ///< digest of a backing that is still valid, as last verified or saved
  PageEncoding known_encoding = PageEncoding::kNone;
  bool may_elide_zero = true; ///< false: zeros are copied too (the host copy must be readable as it is)
  bool trusted = false;       ///< with `known`: promised unchanged, neither hashed nor copied

  // Out.
  PageEncoding encoding = PageEncoding::kNone;
  std::optional<PageDigest> digest; ///< unset when the device code could not run: unverified
  bool copied = false;              ///< also after a failure: its backing may have been written
};

/// One page of a wake.
struct RestoreTask {
  DeviceAddress device;
  const std::byte* host = nullptr;
  std::uint32_t piece = 0;
  PageEncoding encoding = PageEncoding::kNone; ///< kRaw is copied; kNone and kZero are cleared on the device
  std::optional<PageDigest> expected;          ///< compared after the copy; unset: not verified
};

} // namespace stillwake
