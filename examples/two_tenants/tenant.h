// SPDX-License-Identifier: Apache-2.0
// A Tenant is an engine that needs most of the device: one shard of large blocks, with content that only it knows and
// that changes every time it works.
#pragma once

#include "examples/content.h"

#include <memory>
#include <string>
#include <vector>

namespace example {

class Tenant {
public:
  /// Allocates `size` in blocks of at most 256 MiB; the device must have room for it now.
  [[nodiscard]] static stillwake::Result<Tenant> create(stillwake::Driver& driver, stillwake::DeviceIndex device,
                                                        const std::string& name, stillwake::Bytes size,
                                                        const std::vector<std::byte>& pattern);

  stillwake::Shard& shard() const { return *shard_; }
  /// Stands for a turn's work: new content in every byte. The tenant is awake.
  [[nodiscard]] stillwake::Result<void> work(Content& content);
  /// How many bytes are not what the last work left. The tenant is awake.
  [[nodiscard]] stillwake::Result<std::uint64_t> count_wrong(Content& content);

private:
  std::unique_ptr<stillwake::Shard> shard_; // a set holds its address
  std::vector<Piece> pieces_;
  unsigned char key_ = 0; // of the last work; each tenant begins at another
};

} // namespace example
