// SPDX-License-Identifier: Apache-2.0
// Where bytes live: in the handle, not at the address; and copies over several mappings.
#include "tests/driver/conformance/conformance.h"
#include "tests/driver/conformance/pieces.h"

#include <memory>

namespace stillwake {
namespace {

constexpr Bytes kTwo = kMiB * 2;

class VirtualMemoryContents : public Conformance {
protected:
  void SetUp() override {
    Conformance::SetUp();
    stream_ = std::make_unique<TestStream>(table());
  }
  void TearDown() override {
    stream_.reset();
    Conformance::TearDown();
  }
  CUstream stream() { return stream_->get(); }
  void fill(CUdeviceptr at, int value, Bytes size = kTwo) {
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemsetD8Async(at, static_cast<unsigned char>(value), size.size(), stream()));
    EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream()));
  }
  int value(CUdeviceptr at, Bytes size = kTwo) { return value_at(table(), at, size, stream()); }

private:
  std::unique_ptr<TestStream> stream_;
};

TEST_F(VirtualMemoryContents, BytesBelongToTheHandleAndComeBackWithIt) {
  const Range range(table(), kTwo);
  const Handle one(table(), kTwo);
  const Handle two(table(), kTwo);
  {
    const Placed placed(table(), range.at(), one, kTwo);
    fill(range.at(), 11);
  }
  {
    const Placed placed(table(), range.at(), two, kTwo);
    fill(range.at(), 22);
    EXPECT_EQ(value(range.at()), 22);
  }
  const Placed placed(table(), range.at(), one, kTwo);
  EXPECT_EQ(value(range.at()), 11);
}

TEST_F(VirtualMemoryContents, OneHandleAtTwoAddressesShowsTheSameBytes) {
  const Range first(table(), kTwo);
  const Range second(table(), kTwo);
  const Handle handle(table(), kTwo);
  const Placed here(table(), first.at(), handle, kTwo);
  Placed there(table(), second.at(), handle, kTwo);
  fill(first.at(), 31);
  EXPECT_EQ(value(second.at()), 31);
  fill(second.at(), 32);
  EXPECT_EQ(value(first.at()), 32);
  there.unmap();
  EXPECT_EQ(value(first.at()), 32);
}

TEST_F(VirtualMemoryContents, AReleasedHandleKeepsItsBytesWhileMapped) {
  const Range range(table(), kTwo);
  Handle handle(table(), kTwo);
  const Placed placed(table(), range.at(), handle, kTwo);
  fill(range.at(), 41);
  handle.release();
  EXPECT_EQ(value(range.at()), 41);
  fill(range.at(), 42);
  EXPECT_EQ(value(range.at()), 42);
}

TEST_F(VirtualMemoryContents, ReadAccessReadsAndMayBeWidenedLater) {
  const Range range(table(), kTwo);
  const Handle handle(table(), kTwo);
  const Placed placed(table(), range.at(), handle, kTwo);
  fill(range.at(), 51);
  const CUmemAccessDesc read = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemSetAccess(range.at(), kTwo.size(), &read, 1));
  EXPECT_EQ(value(range.at()), 51);
  const CUmemAccessDesc both = access_of(0);
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemSetAccess(range.at(), kTwo.size(), &both, 1));
  fill(range.at(), 52);
  EXPECT_EQ(value(range.at()), 52);
}

// A shard's copies run over many handles: each kind of copy, with odd ends, over four mappings of different sizes.
TEST_F(VirtualMemoryContents, OneCopySpansSeveralMappings) {
  const Bytes sizes[] = {kTwo, kMiB * 4, kTwo, kMiB * 8};
  const Bytes whole = kMiB * 16;
  const Bytes odd = whole - Bytes(12288 + 7);
  const Range source(table(), whole);
  const Range target(table(), whole);
  std::vector<std::unique_ptr<Handle>> handles;
  std::vector<std::unique_ptr<Placed>> placed;
  for (const Range* range : {&source, &target}) {
    Bytes at;
    for (const Bytes size : sizes) {
      handles.push_back(std::make_unique<Handle>(table(), size));
      placed.push_back(std::make_unique<Placed>(table(), range->at(at), *handles.back(), size));
      at += size;
    }
  }
  const HostMemory in(table(), whole, HostMemory::Pinned::kYes);
  const HostMemory out(table(), whole, HostMemory::Pinned::kYes);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    in.at()[i] = static_cast<std::uint8_t>(i * 2654435761u >> 13);
  }
  fill(target.at(), 0, whole);
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyHtoDAsync(source.at() + 7, in.at() + 7, odd.size(), stream()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoDAsync(target.at() + 7, source.at() + 7, odd.size(), stream()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoHAsync(out.at() + 7, target.at() + 7, odd.size(), stream()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream()));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < odd.size(); ++i) {
    wrong += out.at()[i + 7] != in.at()[i + 7] ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(value(target.at(), Bytes(7)), 0) << "nothing before the copy was touched";
  EXPECT_EQ(value(target.at(odd + Bytes(7)), whole - odd - Bytes(7)), 0) << "nothing behind it";
  fill(target.at(kMiB), 77, kMiB * 14);
  EXPECT_EQ(value(target.at(kMiB), kMiB * 14), 77);
}

// The driver looks at the addresses when the work is queued: what it can see to be wrong is an error and harms nothing.
TEST_F(VirtualMemoryContents, WorkOnAddressesWithoutAccessIsRefusedWhenQueued) {
  const Range range(table(), kMiB * 16);
  const Handle handle(table(), kTwo);
  const Handle second(table(), kTwo);
  const HostMemory host(table(), kMiB * 8, HostMemory::Pinned::kYes);
  const Placed placed(table(), range.at(), handle, kTwo);
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemMap(range.at(kMiB * 4), kTwo.size(), 0, second.get(), 0)); // no access
  const auto refused = [&](CUdeviceptr at, Bytes size) {
    EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemsetD8Async(at, 1, size.size(), stream()));
    EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemcpyHtoDAsync(at, host.at(), size.size(), stream()));
    EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemcpyDtoHAsync(host.at(), at, size.size(), stream()));
  };
  refused(range.at(kMiB * 8), kTwo); // nothing mapped
  refused(range.at(kMiB * 4), kTwo); // mapped, no access set
  refused(range.at(kMiB), kTwo);     // runs past the end of what is mapped
  const CUmemAccessDesc read = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_ANSWER(CUDA_SUCCESS, table().cuMemSetAccess(range.at(), kTwo.size(), &read, 1));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemsetD8Async(range.at(), 1, kTwo.size(), stream()));
  EXPECT_ANSWER(CUDA_ERROR_INVALID_VALUE, table().cuMemcpyHtoDAsync(range.at(), host.at(), kTwo.size(), stream()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemcpyDtoHAsync(host.at(), range.at(), kTwo.size(), stream()));
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuStreamSynchronize(stream())) << "the context lives";
  EXPECT_ANSWER(CUDA_SUCCESS, table().cuMemUnmap(range.at(kMiB * 4), kTwo.size()));
}

TEST_F(VirtualMemoryContents, FreshMappingsNeedAccessAgainAndThenWork) {
  const Range range(table(), kTwo);
  const Handle handle(table(), kTwo);
  for (int cycle = 1; cycle <= 3; ++cycle) {
    const Placed placed(table(), range.at(), handle, kTwo);
    fill(range.at(), cycle);
    EXPECT_EQ(value(range.at()), cycle);
  }
}

} // namespace
} // namespace stillwake
