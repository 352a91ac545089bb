// SPDX-License-Identifier: Apache-2.0
// The page digest on the device: a thread a strip, four blocks a page, so that a chunk of 64 MiB fills the chip.
// Kept as PTX in page_kernels.ptx; after a change run scripts/update_ptx.py.
#include "allocator/transfer/page_digest_launch.h"

namespace {

using namespace stillwake;

constexpr unsigned kWarp = 32;
constexpr unsigned kLoadsInFlight = 8;

struct Sums {
  unsigned long long lane[2];
  unsigned long long any_bits;
};

__device__ void add_across_warp(Sums& sums) {
  for (unsigned distance = kWarp / 2; distance != 0; distance /= 2) {
    sums.lane[0] += __shfl_down_sync(~0u, sums.lane[0], distance);
    sums.lane[1] += __shfl_down_sync(~0u, sums.lane[1], distance);
    sums.any_bits |= __shfl_down_sync(~0u, sums.any_bits, distance);
  }
}

} // namespace

extern "C" __global__ void __launch_bounds__(PageDigestLaunch::kThreads)
    stillwake_page_digest(const PageDigestLaunch launch) {
  const std::uint32_t page = blockIdx.x / PageDigestLaunch::kBlocksPerPage;
  if (page >= launch.pages) {
    return;
  }
  const std::uint32_t strip = blockIdx.x % PageDigestLaunch::kBlocksPerPage * PageDigestLaunch::kThreads + threadIdx.x;
  const uint4* unit = reinterpret_cast<const uint4*>(page_hash::page_address(launch, page)) + strip;

  page_hash::LaneState lane_0 = page_hash::begin(launch.seed, 0);
  page_hash::LaneState lane_1 = page_hash::begin(launch.seed, 1);
  std::uint32_t any_low = 0;
  std::uint32_t any_high = 0;
#pragma unroll 1
  for (unsigned done = 0; done < page_hash::kUnitsPerStrip; done += kLoadsInFlight) {
    uint4 units[kLoadsInFlight];
#pragma unroll
    for (unsigned i = 0; i < kLoadsInFlight; ++i) {
      units[i] = __ldcs(unit + i * page_hash::kStrips);
    }
    unit += kLoadsInFlight * page_hash::kStrips;
#pragma unroll
    for (unsigned i = 0; i < kLoadsInFlight; ++i) {
      page_hash::absorb_0(lane_0, units[i].x, units[i].y);
      page_hash::absorb_1(lane_1, units[i].x, units[i].y);
      page_hash::absorb_0(lane_0, units[i].z, units[i].w);
      page_hash::absorb_1(lane_1, units[i].z, units[i].w);
      any_low |= units[i].x | units[i].z;
      any_high |= units[i].y | units[i].w;
    }
  }

  Sums sums = {{page_hash::finalise(lane_0, strip), page_hash::finalise(lane_1, strip)},
               static_cast<unsigned long long>(any_high) << 32 | any_low};
  add_across_warp(sums);
  __shared__ Sums of_warp[PageDigestLaunch::kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) {
    of_warp[threadIdx.x / kWarp] = sums;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < PageDigestLaunch::kThreads / kWarp; ++warp) {
      sums.lane[0] += of_warp[warp].lane[0];
      sums.lane[1] += of_warp[warp].lane[1];
      sums.any_bits |= of_warp[warp].any_bits;
    }
    Sums* digest = reinterpret_cast<Sums*>(launch.digests) + page;
    atomicAdd(&digest->lane[0], sums.lane[0]);
    atomicAdd(&digest->lane[1], sums.lane[1]);
    atomicOr(&digest->any_bits, sums.any_bits);
  }
}
