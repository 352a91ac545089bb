// SPDX-License-Identifier: Apache-2.0
#include "examples/two_tenants/tenant.h"

#include <algorithm>

namespace example {

using stillwake::Bytes;
using stillwake::Result;
using stillwake::Shard;

Result<Tenant> Tenant::create(stillwake::Driver& driver, stillwake::DeviceIndex device, const std::string& name,
                              Bytes size, const std::vector<std::byte>& pattern) {
  Tenant tenant;
  stillwake::ShardOptions options;
  options.name = name;
  options.device = device;
  auto shard = Shard::create(driver, std::move(options));
  STILLWAKE_TRY(shard);
  tenant.shard_ = std::make_unique<Shard>(*std::move(shard));
  for (const char character : name) {
    tenant.key_ = static_cast<unsigned char>(tenant.key_ * 31 + character);
  }
  const Bytes largest(pattern.size());
  for (Bytes done; done < size; done += largest) {
    const Bytes block_size = std::min(largest, size - done);
    auto block = tenant.shard_->allocate(block_size);
    STILLWAKE_TRY(block);
    tenant.pieces_.push_back({static_cast<std::byte*>(*block), pattern.data(), block_size});
  }
  return tenant;
}

Result<void> Tenant::work(Content& content) { return content.write(pieces_, ++key_); }
Result<std::uint64_t> Tenant::count_wrong(Content& content) { return content.count_different(pieces_, key_); }

} // namespace example
