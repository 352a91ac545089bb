// SPDX-License-Identifier: Apache-2.0
// What the virtual memory calls take and refuse.
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

#include <chrono>
#include <thread>

namespace stillwake {
namespace {

constexpr Bytes kTwo = kMiB * 2;
constexpr Bytes kFour = kMiB * 4;

class VirtualMemory : public Conformance {
protected:
  CUresult create(CUmemGenericAllocationHandle* handle, std::uint64_t size, unsigned long long flags = 0) {
    const CUmemAllocationProp memory = on_device(0);
    return table().cuMemCreate(handle, size, &memory, flags);
  }
  CUresult set_access(CUdeviceptr at, Bytes size) {
    const CUmemAccessDesc access = access_of(0);
    return table().cuMemSetAccess(at, size.size(), &access, 1);
  }
  /// Whether that many bytes are free again, within what a neighbour may take meanwhile.
  bool comes_free(Bytes expected) {
    for (int tries = 0; tries < 200; ++tries) {
      if (free_bytes(table()) + kMiB * 16 >= expected) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
};

TEST_F(VirtualMemory, ReserveRefusesWhatIsNoMultipleOfTheGranularity) {
  CUdeviceptr at = 0;
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAddressReserve(&at, 0, 0, 0, 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAddressReserve(&at, 4096, 0, 0, 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAddressReserve(&at, kTwo.size() + 4096, 0, 0, 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAddressReserve(&at, kTwo.size(), 3 * kTwo.size(), 0, 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAddressReserve(&at, kTwo.size(), 0, 0, 1));
}

TEST_F(VirtualMemory, ReservationsAreAlignedAndLieApart) {
  const Range one(table(), kFour);
  const Range two(table(), kFour);
  const Range aligned(table(), kTwo, kGiB);
  EXPECT_EQ(one.at() % kTwo.count(), 0u);
  EXPECT_EQ(aligned.at() % kGiB.count(), 0u);
  EXPECT_TRUE(one.at() + kFour.count() <= two.at() || two.at() + kFour.count() <= one.at());
}

TEST_F(VirtualMemory, AReservationMayBeMuchLargerThanTheDevice) {
  const Range range(table(), kGiB * 1024);
  const Handle handle(table(), kTwo);
  const Placed last(table(), range.at(range.size() - kTwo), handle, kTwo);
  const TestStream stream(table());
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(range.at(range.size() - kTwo), 9, kTwo.size(), stream.get()));
  EXPECT_EQ(value_at(table(), range.at(range.size() - kTwo), kTwo, stream.get()), 9);
}

TEST_F(VirtualMemory, FreeingAReservationTakesTheWholeOfIt) {
  CUdeviceptr at = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAddressReserve(&at, kFour.size(), 0, 0, 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAddressFree(at, kTwo.size()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAddressFree(at + kTwo.count(), kTwo.size()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemAddressFree(at, kFour.size()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAddressFree(at, kFour.size()));
}

TEST_F(VirtualMemory, CreateTakesWholeGranulesOnly) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, create(&handle, 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, create(&handle, 4096));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, create(&handle, kTwo.count() + 4096));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, create(&handle, kTwo.count(), 1));
  CUmemAllocationProp nowhere = on_device(1000);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_DEVICE, table().cuMemCreate(&handle, kTwo.size(), &nowhere, 0));
}

TEST_F(VirtualMemory, MoreThanTheDeviceHasIsOutOfMemoryAndLeavesNothing) {
  std::size_t total = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuDeviceTotalMem(&total, 0));
  const Bytes before = free_bytes(table());
  CUmemGenericAllocationHandle handle = 0;
  for (int tries = 0; tries < 3; ++tries) {
    EXPECT_ANSWER(CUDA_ERROR_OUT_OF_MEMORY, create(&handle, (round_up(Bytes(total), kTwo) + kGiB).count()));
  }
  EXPECT_TRUE(comes_free(before));
  const Handle fits(table(), kFour);
}

TEST_F(VirtualMemory, AFullDeviceIsOutOfMemoryAndAReleaseMakesRoom) {
  const Bytes before = free_bytes(table());
  Handle most(table(), Bytes(Pages(pages_below(before).count() / 4 * 3)));
  CUmemGenericAllocationHandle second = 0;
  const std::uint64_t half = Bytes(Pages(pages_below(before).count() / 2)).count();
  EXPECT_ANSWER(CUDA_ERROR_OUT_OF_MEMORY, create(&second, half));
  most.release();
  ASSERT_TRUE(comes_free(before));
  ASSERT_ANSWER(CUDA_SUCCESS, create(&second, half));
  EXPECT_LE(free_bytes(table()), before - Bytes(half) + kMiB * 16);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemRelease(second));
  EXPECT_TRUE(comes_free(before));
}

TEST_F(VirtualMemory, MapTakesTheWholeHandleAtAnAlignedAddress) {
  const Range range(table(), kMiB * 8);
  const Handle handle(table(), kFour);
  EXPECT_ANSWER(CUDA_ERROR_NOT_SUPPORTED, table().cuMemMap(range.at(), kTwo.size(), kTwo.size(), handle.get(), 0));
  EXPECT_ANSWER(CUDA_ERROR_NOT_SUPPORTED, table().cuMemMap(range.at(), kTwo.size(), 0, handle.get(), 0));
  EXPECT_ANSWER(CUDA_ERROR_NOT_SUPPORTED, table().cuMemMap(range.at(), kMiB.size() * 6, 0, handle.get(), 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemMap(range.at(), 0, 0, handle.get(), 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemMap(range.at() + 4096, kFour.size(), 0, handle.get(), 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemMap(range.at(), kFour.size(), 0, handle.get(), 1));
}

// A map whose end lies outside its reservation is not tried: the driver was seen to let it pass, and then to keep the
// addresses for good. The emulation refuses it.
TEST_F(VirtualMemory, MapNeedsReservedAddressesWithNothingThere) {
  const Range range(table(), kMiB * 8);
  const Handle handle(table(), kFour);
  const Handle other(table(), kFour);
  CUdeviceptr gone = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAddressReserve(&gone, kFour.size(), 0, 0, 0));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAddressFree(gone, kFour.size()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemMap(gone, kFour.size(), 0, handle.get(), 0));
  const Placed placed(table(), range.at(), handle, kFour);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemMap(range.at(), kFour.size(), 0, other.get(), 0));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemMap(range.at(kTwo), kFour.size(), 0, other.get(), 0));
}

TEST_F(VirtualMemory, AReservationWithMappingsIsNotFreed) {
  CUdeviceptr at = 0;
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemAddressReserve(&at, kFour.size(), 0, 0, 0));
  {
    const Handle handle(table(), kTwo);
    const Placed placed(table(), at + kTwo.count(), handle, kTwo);
    EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemAddressFree(at, kFour.size()));
  }
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemAddressFree(at, kFour.size()));
}

TEST_F(VirtualMemory, UnmapTakesWholeMappings) {
  const Range range(table(), kMiB * 12);
  const Handle handle(table(), kFour);
  const TestStream stream(table());
  const Placed placed(table(), range.at(), handle, kFour);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(range.at(), 5, kFour.size(), stream.get()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemUnmap(range.at(), kTwo.size()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemUnmap(range.at(kTwo), kTwo.size()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemUnmap(range.at(), 0));
  EXPECT_EQ(value_at(table(), range.at(), kFour, stream.get()), 5) << "a refused unmap changes nothing";
  // Success does not say that anything was mapped: a count of what was unmapped is ours to keep.
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemUnmap(range.at(kMiB * 8), kFour.size()));
}

TEST_F(VirtualMemory, OneUnmapTakesSeveralNeighbours) {
  const Range range(table(), kMiB * 8);
  const Handle one(table(), kTwo);
  const Handle two(table(), kFour);
  const Handle three(table(), kTwo);
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemMap(range.at(), kTwo.size(), 0, one.get(), 0));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemMap(range.at(kTwo), kFour.size(), 0, two.get(), 0));
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemMap(range.at(kMiB * 6), kTwo.size(), 0, three.get(), 0));
  EXPECT_ANSWER(CUDA_SUCCESS, set_access(range.at(), range.size()));                     // one call over all three
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemUnmap(range.at(), kFour.size())); // half of the second
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemUnmap(range.at(), range.size().size()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, set_access(range.at(), kTwo)) << "nothing is mapped any more";
}

TEST_F(VirtualMemory, AccessNeedsMappedMemory) {
  const Range range(table(), kMiB * 8);
  const Handle handle(table(), kFour);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, set_access(range.at(), kFour));
  const Placed placed(table(), range.at(), handle, kFour);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, set_access(range.at(), range.size())); // the second half is not mapped
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, set_access(range.at(), kTwo));         // half of a mapping
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, set_access(range.at(), Bytes(0)));
  const CUmemAccessDesc nowhere = access_of(1000);
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemSetAccess(range.at(), kFour.size(), &nowhere, 1));
}

TEST_F(VirtualMemory, BytesReturnOnceUnmappedAndReleasedInEitherOrder) {
  const Bytes size = kMiB * 128;
  const Range range(table(), size);
  const Bytes before = free_bytes(table());
  {
    Handle handle(table(), size);
    Placed placed(table(), range.at(), handle, size);
    EXPECT_LE(free_bytes(table()), before - size + kMiB * 16);
    placed.unmap();
    EXPECT_LE(free_bytes(table()), before - size + kMiB * 16) << "the handle still holds it";
    handle.release();
  }
  EXPECT_TRUE(comes_free(before));
  {
    Handle handle(table(), size);
    Placed placed(table(), range.at(), handle, size);
    handle.release();
    EXPECT_LE(free_bytes(table()), before - size + kMiB * 16) << "the mapping still holds it";
    placed.unmap();
  }
  EXPECT_TRUE(comes_free(before));
}

} // namespace
} // namespace stillwake
