// SPDX-License-Identifier: Apache-2.0
#include "examples/content.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

namespace example {

using stillwake::Bytes;
using stillwake::DeviceIndex;
using stillwake::Driver;
using stillwake::Result;

namespace {

constexpr Bytes kBuffer = stillwake::kMiB * 32;

/// Pieces that together fit one buffer: what a thread takes at a time.
using Batch = std::vector<Piece>;

std::vector<Batch> batches_of(const std::vector<Piece>& pieces) {
  std::vector<Batch> batches;
  Bytes room;
  for (const Piece& piece : pieces) {
    for (Bytes done; done < piece.size;) {
      if (room == Bytes(0)) {
        batches.emplace_back();
        room = kBuffer;
      }
      const Bytes size = std::min(room, piece.size - done);
      batches.back().push_back({piece.device + done.count(), piece.host + done.count(), size});
      room -= size;
      done += size;
    }
  }
  return batches;
}

using BatchWork = std::function<Result<void>(CopyLane& lane, const Batch& batch)>;

/// Gives each lane a thread that takes batches until none is left or one of them fails; answers the first failure.
Result<void> for_each_batch(std::vector<CopyLane>& lanes, const std::vector<Piece>& pieces, const BatchWork& work) {
  const std::vector<Batch> batches = batches_of(pieces);
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<Result<void>> results(lanes.size());
  const auto take = [&](std::size_t lane) {
    for (std::size_t at = next++; at < batches.size() && !failed; at = next++) {
      if (auto done = work(lanes[lane], batches[at]); !done) {
        results[lane] = std::move(done);
        failed = true;
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t lane = 1; lane < lanes.size(); ++lane) {
    threads.emplace_back(take, lane);
  }
  take(0);
  for (std::thread& thread : threads) {
    thread.join();
  }
  const auto failure = std::find_if(results.begin(), results.end(), [](const auto& result) { return !result; });
  return failure == results.end() ? Result<void>{} : *failure;
}

/// Eight bytes at a time, which a plain build would not do by itself.
using Word = std::uint64_t;

Word word_at(const std::byte* bytes, std::size_t at) {
  Word word = 0;
  std::memcpy(&word, bytes + at, sizeof word);
  return word;
}

void copy_with_key(std::byte* to, const std::byte* from, std::size_t size, unsigned char key) {
  const Word keys = key * 0x0101010101010101ULL;
  std::size_t at = 0;
  for (; at + sizeof(Word) <= size; at += sizeof(Word)) {
    const Word word = word_at(from, at) ^ keys;
    std::memcpy(to + at, &word, sizeof word);
  }
  for (; at < size; ++at) {
    to[at] = from[at] ^ std::byte{key};
  }
}

std::uint64_t count_in(const std::byte* have, const std::byte* want, std::size_t size, unsigned char key) {
  const Word keys = key * 0x0101010101010101ULL;
  std::uint64_t different = 0;
  const auto count = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      different += have[i] != (want[i] ^ std::byte{key}) ? 1 : 0;
    }
  };
  std::size_t at = 0;
  for (; at + sizeof(Word) <= size; at += sizeof(Word)) {
    if (word_at(have, at) != (word_at(want, at) ^ keys)) {
      count(at, at + sizeof(Word));
    }
  }
  count(at, size);
  return different;
}

} // namespace

Result<Content> Content::open(Driver& driver, DeviceIndex device, int threads) {
  std::vector<CopyLane> lanes;
  for (int i = 0; i < threads; ++i) {
    auto lane = CopyLane::open(driver, device, kBuffer);
    STILLWAKE_TRY(lane);
    lanes.push_back(*std::move(lane));
  }
  return Content(std::move(lanes));
}

Result<void> Content::write(const std::vector<Piece>& pieces, unsigned char key) {
  return for_each_batch(lanes_, pieces, [key](CopyLane& lane, const Batch& batch) -> Result<void> {
    Bytes at;
    for (const Piece& piece : batch) {
      copy_with_key(lane.buffer() + at.count(), piece.host, piece.size.size(), key);
      STILLWAKE_TRY(lane.to_device(piece.device, at, piece.size));
      at += piece.size;
    }
    return lane.synchronize();
  });
}

Result<std::uint64_t> Content::count_different(const std::vector<Piece>& pieces, unsigned char key) {
  std::atomic<std::uint64_t> different{0};
  const auto work = [key, &different](CopyLane& lane, const Batch& batch) -> Result<void> {
    Bytes at;
    for (const Piece& piece : batch) {
      STILLWAKE_TRY(lane.to_host(at, piece.device, piece.size));
      at += piece.size;
    }
    STILLWAKE_TRY(lane.synchronize());
    at = Bytes(0);
    for (const Piece& piece : batch) {
      different += count_in(lane.buffer() + at.count(), piece.host, piece.size.size(), key);
      at += piece.size;
    }
    return {};
  };
  STILLWAKE_TRY(for_each_batch(lanes_, pieces, work));
  return different.load();
}

Result<BusRates> Content::measure_bus(Driver& driver, DeviceIndex device) {
  constexpr int kCopies = 16;
  auto memory = NeighbourMemory::take(driver, device, kBuffer);
  STILLWAKE_TRY(memory);
  const auto round = [&](auto&& copy) -> Result<double> {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCopies; ++i) {
      STILLWAKE_TRY(copy());
    }
    STILLWAKE_TRY(lane().synchronize());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return static_cast<double>(kBuffer.count()) * kCopies / took.count();
  };
  BusRates rates;
  for (int i = 0; i < 2; ++i) {
    auto to_device = round([&] { return lane().to_device(memory->pointer(), Bytes(0), kBuffer); });
    STILLWAKE_TRY(to_device);
    auto to_host = round([&] { return lane().to_host(Bytes(0), memory->pointer(), kBuffer); });
    STILLWAKE_TRY(to_host);
    rates.to_device = std::max(rates.to_device, *to_device);
    rates.to_host = std::max(rates.to_host, *to_host);
  }
  return rates;
}

} // namespace example
