// SPDX-License-Identifier: Apache-2.0
#include "allocator/transfer/page_hasher.h"

#include "allocator/transfer/embedded_ptx.h"
#include "allocator/transfer/kernel_twins.h"

#include <algorithm>
#include <chrono>
#include <random>

namespace stillwake {
namespace {

// Digests of so many pages fit in one scratch: more are taken in turns, in stream order.
constexpr std::size_t kScratchPages = 4096;
constexpr std::size_t kScratchBytes = kScratchPages * sizeof(PageDigest);

// One seed a process: digests of one page taken by different engines are equal.
std::uint64_t process_seed() {
  static const std::uint64_t seed = [] {
    std::random_device device;
    const auto now = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    return page_hash::mix(now ^ (static_cast<std::uint64_t>(device()) << 32 | device()));
  }();
  return seed;
}

// Takes pages from the front of `pages` until the launch is full or they are all in it; answers how many.
std::uint32_t fill(PageDigestLaunch& launch, std::span<const DeviceAddress> pages) {
  launch.runs = 0;
  launch.pages = 0;
  for (const DeviceAddress page : pages) {
    const bool follows = launch.pages != 0 && page == pages[launch.pages - 1] + kPageBytes;
    if (!follows) {
      if (launch.runs == PageDigestLaunch::kMaxRuns) {
        break;
      }
      launch.first_page[launch.runs] = launch.pages;
      launch.run_address[launch.runs] = page.value();
      ++launch.runs;
    }
    ++launch.pages;
  }
  return launch.pages;
}

} // namespace

PageHasher::PageHasher(Device& device) : device_(device), seed_(process_seed()) {}

Result<std::unique_ptr<PageHasher>> PageHasher::open(Device& device, Emulation* emulation) {
  if (emulation != nullptr) {
    register_kernel_twins(*emulation);
  }
  std::unique_ptr<PageHasher> hasher(new PageHasher(device));
  const Result<void> loaded = hasher->load();
  if (!loaded) {
    if (loaded.error().code != ErrorCode::kDriverCallFailed) {
      return failure(loaded.error());
    }
    const std::string text = "pages cannot be verified on this device: " + loaded.error().describe();
    device.table().log(LogLevel::kWarning, text.c_str());
  }
  return hasher;
}

Result<void> PageHasher::load() {
  STILLWAKE_ENTER(device_);
  DriverTable& table = device_.table();
  STILLWAKE_TRY(STILLWAKE_CALL(table, "loading the device code", cuModuleLoadData, &module_, kPageKernelsPtx));
  CUfunction kernel = nullptr;
  STILLWAKE_TRY(STILLWAKE_CALL(table, "finding the page digest kernel", cuModuleGetFunction, &kernel, module_,
                               PageDigestLaunch::kKernel));
  kernel_ = kernel;
  return {};
}

// The driver may put off loading a kernel until its first launch; on a full device that could fail, so it is now.
Result<void> PageHasher::prepare(OwnedStream& stream) {
  if (!has_kernels()) {
    return {};
  }
  STILLWAKE_ENTER(device_);
  STILLWAKE_TRY(
      STILLWAKE_CALL(device_.table(), "taking scratch memory for digests", cuMemAlloc, &scratch_, 2 * kScratchBytes));
  PageDigestLaunch nothing;
  nothing.seed = seed_;
  STILLWAKE_TRY(launch(stream.get(), nothing));
  return stream.synchronize();
}

PageHasher::~PageHasher() {
  if (driver_is_out_of_reach() || (module_ == nullptr && scratch_ == 0)) {
    return;
  }
  DriverTable& table = device_.table();
  if (scratch_ != 0) {
    try_twice(table, [&]() -> Result<void> {
      STILLWAKE_ENTER(device_);
      return STILLWAKE_CALL(table, "giving back scratch memory for digests", cuMemFree, scratch_);
    });
  }
  if (module_ != nullptr) {
    try_twice(table, [&]() -> Result<void> {
      STILLWAKE_ENTER(device_);
      return STILLWAKE_CALL(table, "unloading the device code", cuModuleUnload, module_);
    });
  }
}

Result<void> PageHasher::queue(Stream stream, Scratch scratch, std::span<const DeviceAddress> pages,
                               PageDigest* digests) {
  if (!has_kernels()) {
    return failure(ErrorCode::kDriverCallFailed, "the device could not load the page digest kernel");
  }
  DriverTable& table = device_.table();
  const CUdeviceptr results = scratch_ + (scratch == Scratch::kSave ? 0 : kScratchBytes);
  while (!pages.empty()) {
    const std::span<const DeviceAddress> turn = pages.first(std::min(pages.size(), kScratchPages));
    const std::size_t bytes = turn.size() * sizeof(PageDigest);
    STILLWAKE_TRY(STILLWAKE_CALL(table, "clearing digests", cuMemsetD8Async, results, 0, bytes, stream));
    PageDigestLaunch parameters;
    parameters.seed = seed_;
    for (std::size_t done = 0; done < turn.size();) {
      parameters.digests = results + done * sizeof(PageDigest);
      done += fill(parameters, turn.subspan(done));
      STILLWAKE_TRY(launch(stream, parameters));
    }
    STILLWAKE_TRY(STILLWAKE_CALL(table, "fetching digests", cuMemcpyDtoHAsync, digests, results, bytes, stream));
    pages = pages.subspan(turn.size());
    digests += turn.size();
  }
  return {};
}

Result<void> PageHasher::launch(Stream stream, const PageDigestLaunch& launch) {
  void* parameters[] = {const_cast<PageDigestLaunch*>(&launch)};
  const unsigned blocks = std::max(launch.pages, 1u) * PageDigestLaunch::kBlocksPerPage;
  return STILLWAKE_CALL(device_.table(), "launching the page digest kernel", cuLaunchKernel, kernel_, blocks, 1, 1,
                        PageDigestLaunch::kThreads, 1, 1, 0, stream, parameters, nullptr);
}

} // namespace stillwake
