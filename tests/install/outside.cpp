// SPDX-License-Identifier: Apache-2.0
// A program outside the tree: it knows Stillwake only as installed. On the emulated driver it fills a block, sleeps,
// wakes and compares; the device's memory is ordinary memory there, so plain code can look at it. It has a folder
// shard/ of its own with a header that Stillwake has, too.
#include "shard/options.h"

#include <stillwake/stillwake.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

int failed(const char* what, const stillwake::Error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.describe().c_str());
  return 1;
}

} // namespace

int main() {
  stillwake::DriverOptions driver_options;
  driver_options.kind = stillwake::DriverKind::kEmulated;
  auto driver = stillwake::Driver::open(driver_options);
  if (!driver) {
    return failed("open", driver.error());
  }
  stillwake::ShardOptions shard_options;
  shard_options.name = engine::Options{}.model;
  auto shard = stillwake::Shard::create(*driver, shard_options);
  if (!shard) {
    return failed("create", shard.error());
  }

  std::vector<unsigned char> wanted(5 * 1000 * 1000);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = static_cast<unsigned char>(i * 31 + i / 251);
  }
  auto block = shard->allocate(stillwake::Bytes(wanted.size()));
  if (!block) {
    return failed("allocate", block.error());
  }
  std::memcpy(*block, wanted.data(), wanted.size());

  const auto before = driver->memory(shard->device());
  auto slept = stillwake::sleep({&*shard});
  if (!slept) {
    return failed("sleep", slept.error());
  }
  const auto asleep = driver->memory(shard->device());
  if (!before || !asleep || asleep->free < before->free + stillwake::Bytes(wanted.size())) {
    std::fprintf(stderr, "the device's memory is not free while the shard sleeps\n");
    return 1;
  }
  auto woken = stillwake::wake({&*shard});
  if (!woken) {
    return failed("wake", woken.error());
  }
  if (std::memcmp(*block, wanted.data(), wanted.size()) != 0) {
    std::fprintf(stderr, "the bytes are not those that went to sleep\n");
    return 1;
  }
  std::puts("same address, same bytes");
  return 0;
}
