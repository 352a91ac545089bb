// SPDX-License-Identifier: Apache-2.0
// A PageHasher launches the page digest kernel of one device. Its code is loaded when it is opened, and its
// scratch memory taken before it is used. Streams that hash at the same time need a Scratch each.
#pragma once

#include "allocator/driver/driver_layer.h"
#include "allocator/transfer/page_digest.h"
#include "allocator/transfer/page_digest_launch.h"

#include <memory>
#include <span>

namespace stillwake {

class PageHasher {
public:
  enum class Scratch { kSave, kRestore };

  /// A device that cannot load the code is no error, unless it lacks the memory or is lost.
  [[nodiscard]] static Result<std::unique_ptr<PageHasher>> open(Device& device, Emulation* emulation);
  /// Takes the scratch memory and launches once, with nothing to hash. Once, before `queue`.
  [[nodiscard]] Result<void> prepare(OwnedStream& stream);
  ~PageHasher();
  PageHasher(const PageHasher&) = delete;
  PageHasher& operator=(const PageHasher&) = delete;

  bool has_kernels() const { return kernel_ != nullptr; }
  std::uint64_t seed() const { return seed_; }

  /// Queues on the stream: the digests of the pages as the stream finds them, into `digests`, pinned memory. The caller
  /// is in the device's context, and uses one scratch on one stream only. On an error something may be queued.
  [[nodiscard]] Result<void> queue(Stream stream, Scratch scratch, std::span<const DeviceAddress> pages,
                                   PageDigest* digests);

private:
  explicit PageHasher(Device& device);
  [[nodiscard]] Result<void> load();
  [[nodiscard]] Result<void> launch(Stream stream, const PageDigestLaunch& launch);

  Device& device_;
  const std::uint64_t seed_;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUdeviceptr scratch_ = 0; // two halves, one a Scratch
};

} // namespace stillwake
