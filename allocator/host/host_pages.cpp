// SPDX-License-Identifier: Apache-2.0
#include "allocator/host/host_pages.h"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <sys/resource.h>
#include <utility>

#ifdef STILLWAKE_HAVE_NUMA
#include <numa.h>
#include <numaif.h>
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 // Linux 5.14; older systems answer EINVAL
#endif

namespace stillwake {
namespace {

constexpr Bytes kSystemPage = kKiB * 4;

/// Prefers the device's node; a full node is no reason to fail, so this is no binding.
void place_on_node([[maybe_unused]] std::byte* base, [[maybe_unused]] Bytes size, [[maybe_unused]] int node) {
#ifdef STILLWAKE_HAVE_NUMA
  if (node < 0 || numa_available() < 0 || node > numa_max_node()) {
    return;
  }
  bitmask* nodes = numa_allocate_nodemask();
  numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  // Placement is a matter of speed: where the system refuses it (a sandbox does), memory comes from anywhere.
  (void)mbind(base, size.size(), MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0);
  numa_free_nodemask(nodes);
#endif
}

Error system_error(const char* doing, Bytes size, int error) {
  return Error{ErrorCode::kOutOfHostMemory, 0, "",
               std::string(doing) + " " + readable(size) + " of host memory: " + std::strerror(error)};
}

/// What pinning was refused as. The driver says OUT_OF_MEMORY, OPERATING_SYSTEM or NOT_PERMITTED for a system that
/// will not pin; what can only be a mistake of the caller, or a dead context, keeps its own code.
Error pin_error(const Device& device, CUresult result, Bytes size) {
  std::string doing = "pinning " + exact(size) + " of host memory";
  rlimit locked = {};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY && locked.rlim_cur < size.count()) {
    doing += ", where RLIMIT_MEMLOCK is " + exact(Bytes(locked.rlim_cur)) + " (raise it if the system enforces it)";
  }
  Error error = driver_error(device.table(), CallId::cuMemHostRegister, result, std::move(doing));
  const bool mistake = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ||
                       result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED ||
                       result == CUDA_ERROR_DEINITIALIZED;
  if (error.code != ErrorCode::kLost && !mistake) {
    error.code = ErrorCode::kOutOfHostMemory;
  }
  return error;
}

} // namespace

Result<HostPages> HostPages::reserve(Device& device, Bytes size, Bytes alignment) {
  STILLWAKE_CHECK_EQ(size % kSystemPage, Bytes(0));
  STILLWAKE_CHECK_EQ(alignment % kSystemPage, Bytes(0));
  const Bytes spare = alignment - kSystemPage;
  void* mapped = mmap(nullptr, (size + spare).size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return failure(system_error("reserving addresses for", size, errno));
  }
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const auto aligned = static_cast<std::uintptr_t>(round_up(Bytes(start), alignment).count());
  const Bytes before(aligned - start);
  if (before != Bytes(0)) {
    munmap(mapped, before.size());
  }
  if (before != spare) {
    munmap(reinterpret_cast<void*>(aligned + size.size()), (spare - before).size());
  }
  auto* base = reinterpret_cast<std::byte*>(aligned);
  HostPages pages(device, base, size);
  if (madvise(base, size.size(), MADV_DONTFORK) != 0) {
    return failure(system_error("keeping a fork from inheriting", size, errno));
  }
  madvise(base, size.size(), MADV_HUGEPAGE); // refused where the system is built without huge pages: 4 KiB then
  place_on_node(base, size, device.features().host_numa_node);
  return pages;
}

HostPages::HostPages(HostPages&& other) noexcept
    : device_(other.device_), base_(std::exchange(other.base_, nullptr)), size_(other.size_) {}

HostPages& HostPages::operator=(HostPages&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

HostPages::~HostPages() {
  // A child made by fork does not have the range: something else may lie there.
  if (base_ != nullptr && !driver_is_out_of_reach()) {
    munmap(base_, size_.size());
  }
}

Result<void> HostPages::open(Bytes offset, Bytes size) {
  if (mprotect(base_ + offset.size(), size.size(), PROT_READ | PROT_WRITE) != 0) {
    return failure(system_error("opening", size, errno));
  }
  return {};
}

Result<void> HostPages::populate(Bytes offset, Bytes size) {
  std::byte* start = base_ + offset.size();
  int answer = 0;
  do {
    answer = madvise(start, size.size(), MADV_POPULATE_WRITE);
  } while (answer != 0 && errno == EINTR);
  if (answer == 0) {
    return {};
  }
  if (errno != EINVAL) {
    return failure(system_error("taking", size, errno));
  }
  // An older system: a write takes the page, and writing what was read keeps the content of one that is there.
  for (Bytes at; at < size; at += kSystemPage) {
    auto* byte = reinterpret_cast<volatile unsigned char*>(start + at.size());
    *byte = *byte;
  }
  return {};
}

void HostPages::punch(Bytes offset, Bytes size) {
  std::byte* start = base_ + offset.size();
  // Neither call fails on a private anonymous range of ours, but for the second when the system has no more room for
  // ranges of their own; the part then stays readable as zeros, which harms nobody.
  STILLWAKE_CHECK_EQ(madvise(start, size.size(), MADV_DONTNEED), 0);
  (void)mprotect(start, size.size(), PROT_NONE);
}

Result<void> HostPages::pin(Bytes offset, Bytes size) {
  STILLWAKE_ENTER(*device_);
  const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const CUresult result = device_->table().cuMemHostRegister(base_ + offset.size(), size.size(), flags);
  if (result != CUDA_SUCCESS) {
    return failure(pin_error(*device_, result, size));
  }
  return {};
}

Result<void> HostPages::unpin(Bytes offset, Bytes size) {
  STILLWAKE_ENTER(*device_);
  std::byte* start = base_ + offset.size();
  STILLWAKE_TRY(STILLWAKE_CALL(device_->table(), "unpinning host memory", cuMemHostUnregister, start));
  madvise(start, size.size(), MADV_DONTFORK); // a driver may have said the opposite when it let go
  return {};
}

} // namespace stillwake
