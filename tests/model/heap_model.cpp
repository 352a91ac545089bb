// SPDX-License-Identifier: Apache-2.0
#include "tests/model/heap_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace stillwake {
namespace {

constexpr Bytes kReservation = kMiB * 64;
constexpr const char* kNames[] = {"kAllocate",  "kAllocateOne", "kFree",   "kFreeOwn", "kFreeUnknown",
                                  "kFreeWrong", "kHold",        "kFinish", "kSeal",    "kUnseal",
                                  "kDrain",     "kConsolidate", "kUnback", "kFail"};
static_assert(std::size(kNames) == static_cast<std::size_t>(HeapOperation::Kind::kCount));

bool overlap(const std::byte* a, const std::byte* a_end, const std::byte* b, const std::byte* b_end) {
  return a < b_end && b < a_end;
}

} // namespace

std::string HeapOperation::describe() const {
  return fmt::format("{{HeapOperation::Kind::{}, {}, {}}}", kNames[static_cast<int>(kind)], a, b);
}

HeapModel::HeapModel() {
  DriverOptions options;
  options.kind = DriverKind::kEmulated;
  options.emulated_memory = kReservation - kMiB * 8; // less than there are addresses: it runs out in earnest, too
  driver_.emplace(Driver::open(options).value());
  device_ = driver_->device(DeviceIndex(0)).value();
  scope_ = std::make_unique<ContextScope>(*device_);
  reservation_ = Reservation::create(*device_, kReservation).value();
  source_ = std::make_unique<TestSource>(*device_, reservation_);
  heap_ = std::make_unique<Heap>(*device_, reservation_.base(), kReservation, *source_);
  for (std::size_t index = 0; index < kStreams; ++index) {
    streams_.push_back({OwnedStream::create(*device_).value(), nullptr});
  }
}

HeapModel::~HeapModel() {
  for (ModelStream& stream : streams_) {
    stream.gate.reset();
  }
  device_->table().cuCtxSynchronize();
}

std::optional<std::string> HeapModel::apply(const HeapOperation& operation) {
  const std::size_t on = operation.b % kStreams;
  Wrong wrong;
  switch (operation.kind) {
  case HeapOperation::Kind::kAllocate: wrong = allocate(operation.a, on, BlockKind::kShared); break;
  case HeapOperation::Kind::kAllocateOne: wrong = allocate(operation.a, on, BlockKind::kOneHandle); break;
  case HeapOperation::Kind::kFree: wrong = free(operation.a, on); break;
  case HeapOperation::Kind::kFreeOwn:
    wrong = free(operation.a, live_.empty() ? on : live_[operation.a % live_.size()].stream);
    break;
  case HeapOperation::Kind::kFreeUnknown: wrong = free(operation.a, std::nullopt); break;
  case HeapOperation::Kind::kFreeWrong: wrong = free_wrong(operation.a, operation.b); break;
  case HeapOperation::Kind::kHold:
    if (!held(on)) {
      streams_[on].gate = std::make_unique<StreamGate>();
      streams_[on].gate->hold(device_->table(), stream(on));
    }
    break;
  case HeapOperation::Kind::kFinish: wrong = let_go(on); break;
  case HeapOperation::Kind::kSeal:
    if (!sealed_) {
      heap_->seal();
      sealed_ = true;
    }
    break;
  case HeapOperation::Kind::kUnseal:
    if (sealed_) {
      heap_->unseal();
      sealed_ = false;
      queued_.clear();
    }
    break;
  case HeapOperation::Kind::kDrain:
    if (sealed_) {
      heap_->drain_queue();
      queued_.clear();
    }
    break;
  case HeapOperation::Kind::kConsolidate:
    if (sealed_) {
      consolidate();
    }
    break;
  case HeapOperation::Kind::kUnback: wrong = sealed_ ? unback(operation.a) : std::nullopt; break;
  case HeapOperation::Kind::kFail: source_->fail = operation.a % 2 == 1; break;
  case HeapOperation::Kind::kCount: break;
  }
  return wrong ? wrong : check_account();
}

std::optional<std::string> HeapModel::allocate(std::uint64_t size, std::size_t on, BlockKind kind) {
  const bool absurd = size == 0 || size > kReservation.count();
  const auto result = heap_->allocate(Bytes(size), stream(on), kind);
  if (!result) {
    const ErrorCode code = result.error().code;
    if (absurd ? code == ErrorCode::kInvalidArgument
               : (sealed_ && code == ErrorCode::kBusy) || (!sealed_ && code == ErrorCode::kOutOfDeviceMemory)) {
      return std::nullopt;
    }
    return "an allocation failed with " + result.error().describe();
  }
  if (absurd || sealed_) {
    return fmt::format("{} bytes were allocated, sealed {}", size, sealed_);
  }
  const std::uint64_t step = kind == BlockKind::kOneHandle ? kPageBytes.count() : 512;
  Block block{static_cast<std::byte*>(*result), Bytes((size + step - 1) / step * step), on, kind, next_value_++};
  if (auto wrong = check_handed_out(block)) {
    return wrong;
  }
  write(block, on);
  live_.push_back(block);
  return std::nullopt;
}

std::optional<std::string> HeapModel::check_handed_out(const Block& block) {
  const Bytes offset = DeviceAddress(block.pointer) - reservation_.base();
  const std::byte* end = block.pointer + block.size.size();
  if (offset % (block.kind == BlockKind::kOneHandle ? kPageBytes : Bytes(512)) != Bytes(0)) {
    return fmt::format("a block at offset {}", offset.count());
  }
  for (const Block& other : live_) {
    if (overlap(block.pointer, end, other.pointer, other.pointer + other.size.size())) {
      return fmt::format("two live blocks share bytes at offset {}", offset.count());
    }
  }
  for (Pages page = pages_below(offset); Bytes(page) < offset + block.size; ++page) {
    if (!source_->is_backed(page)) {
      return fmt::format("a block on page {}, which has no memory", page.count());
    }
  }
  if (block.kind == BlockKind::kOneHandle && source_->handle_at(pages_below(offset)) != pages_below(block.size)) {
    return std::string("a one-handle block is not behind one handle");
  }
  const bool waits = device_->table().cuStreamQuery(stream(block.stream)) == CUDA_ERROR_NOT_READY;
  for (const Danger& danger : dangers_) {
    const bool own = danger.own && danger.stream == block.stream;
    if (!own && !waits && overlap(block.pointer, end, danger.begin, danger.end)) {
      return fmt::format("stream {} got bytes that stream {} still works on", block.stream, danger.stream);
    }
  }
  return std::nullopt;
}

void HeapModel::write(const Block& block, std::size_t on) {
  const std::uint64_t begin = DeviceAddress(block.pointer).value();
  for (const std::uint64_t at : {begin, begin + block.size.count() - 512}) {
    STILLWAKE_CHECK_EQ(device_->table().cuMemsetD8Async(at, block.value, 512, stream(on)), CUDA_SUCCESS);
  }
}

std::optional<std::string> HeapModel::check_content(const Block& block) {
  const auto right = [&](const std::byte* at) {
    return std::all_of(at, at + 512, [&](std::byte byte) { return byte == std::byte(block.value); });
  };
  if (right(block.pointer) && right(block.pointer + block.size.size() - 512)) {
    return std::nullopt;
  }
  return fmt::format("wrong bytes in the block at {:#x}", (DeviceAddress(block.pointer) - reservation_.base()).count());
}

std::optional<std::string> HeapModel::check_contents() {
  STILLWAKE_CHECK_EQ(device_->table().cuCtxSynchronize(), CUDA_SUCCESS);
  for (const Block& block : live_) {
    if (auto wrong = check_content(block)) {
      return wrong;
    }
  }
  return std::nullopt;
}

std::optional<std::string> HeapModel::free(std::uint64_t which, std::optional<std::size_t> from) {
  if (live_.empty()) {
    return std::nullopt;
  }
  const std::size_t index = which % live_.size();
  const Block block = live_[index];
  if (from && *from != block.stream) {
    // The last work is on `from`, after that of the block's own stream.
    if (held(block.stream) || device_->table().cuStreamQuery(stream(block.stream)) != CUDA_SUCCESS) {
      return free(which, std::nullopt);
    }
    write(block, *from);
  }
  if (!any_held()) {
    STILLWAKE_CHECK_EQ(device_->table().cuCtxSynchronize(), CUDA_SUCCESS); // the write above is checked too
    if (auto wrong = check_content(block)) {
      return wrong;
    }
  }
  const auto result = heap_->free(block.pointer, from ? std::optional(stream(*from)) : std::nullopt);
  if (!result) {
    return "a free failed with " + result.error().describe();
  }
  for (std::size_t on = 0; on < kStreams; ++on) {
    if (held(on) && (!from || *from == on)) {
      dangers_.push_back({block.pointer, block.pointer + block.size.size(), on, from == block.stream});
    }
  }
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  last_freed_ = block.pointer;
  if (sealed_) {
    queued_.push_back(block);
  }
  return std::nullopt;
}

std::optional<std::string> HeapModel::free_wrong(std::uint64_t which, std::uint64_t mistake) {
  std::byte* pointer = static_cast<std::byte*>(reservation_.base().pointer()) - 512;
  if (mistake % 3 == 0) {
    pointer = last_freed_;
  } else if (mistake % 3 == 1 && !live_.empty()) {
    const Block& block = live_[which % live_.size()];
    pointer = block.pointer + (block.size > Bytes(512) ? 512 : 1);
  }
  if (std::any_of(live_.begin(), live_.end(), [&](const Block& block) { return block.pointer == pointer; })) {
    return std::nullopt; // given out again: no mistake
  }
  const auto result = heap_->free(pointer, std::nullopt);
  return !result && result.error().code == ErrorCode::kInvalidArgument ? std::nullopt
                                                                       : Wrong("a wrong free was not refused");
}

bool HeapModel::any_held() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const ModelStream& stream) { return stream.gate != nullptr; });
}

std::optional<std::string> HeapModel::let_go(std::size_t on) {
  streams_[on].gate.reset();
  std::erase_if(dangers_, [&](const Danger& danger) { return danger.stream == on; });
  return any_held() ? std::nullopt : check_contents();
}

void HeapModel::consolidate() {
  const bool quiesced = !any_held();
  if (quiesced) {
    STILLWAKE_CHECK_EQ(device_->table().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  heap_->consolidate(quiesced);
}

std::optional<std::string> HeapModel::unback(std::uint64_t pages) {
  const auto unused = heap_->unused_pages();
  if (unused.empty()) {
    return std::nullopt;
  }
  PageRange range = unused[pages % unused.size()];
  range.count = std::min(range.count, Pages(1 + pages % 4));
  const std::byte* begin = static_cast<std::byte*>(reservation_.at(range.first).pointer());
  for (const auto* blocks : {&live_, &queued_}) {
    for (const Block& block : *blocks) {
      if (overlap(begin, begin + Bytes(range.count).size(), block.pointer, block.pointer + block.size.size())) {
        return fmt::format("page {} is called unused and has a block", range.first.count());
      }
    }
  }
  for (const PageRange gone : source_->remove(range)) {
    heap_->note_unbacked(gone);
  }
  return std::nullopt;
}

std::optional<std::string> HeapModel::check_account() {
  heap_->check_invariants();
  const HeapStats stats = heap_->stats();
  Bytes live;
  for (const Block& block : live_) {
    live += block.size;
  }
  Bytes queued;
  for (const Block& block : queued_) {
    queued += block.size;
  }
  if (stats.live_blocks != live_.size() || stats.live != live || stats.queued_frees != queued_.size()) {
    return fmt::format("{} live blocks of {} bytes and {} queued frees, not {}, {} and {}", stats.live_blocks,
                       stats.live.count(), stats.queued_frees, live_.size(), live.count(), queued_.size());
  }
  const Bytes sum = stats.live + stats.cached + stats.parked + stats.backed_free + queued;
  if (sum != Bytes(source_->backed())) {
    return fmt::format("{} bytes are accounted for, {} are backed", sum.count(), Bytes(source_->backed()).count());
  }
  if (!live_.empty()) {
    const Block& block = live_[stats.live.count() / 512 % live_.size()];
    const auto found = heap_->find(block.pointer + block.size.size() - 1);
    if (!found || found->offset != DeviceAddress(block.pointer) - reservation_.base() || found->size != block.size ||
        found->kind != block.kind) {
      return std::string("find does not know the last byte of a live block");
    }
  }
  if (sealed_) {
    const auto blocks = heap_->live_blocks();
    if (blocks.size() != live_.size() + queued_.size() ||
        !std::is_sorted(blocks.begin(), blocks.end(), [](auto& a, auto& b) { return a.offset < b.offset; })) {
      return fmt::format("{} blocks are listed, not {}", blocks.size(), live_.size() + queued_.size());
    }
  }
  return std::nullopt;
}

std::optional<std::string> HeapModel::finish() {
  if (sealed_) {
    heap_->unseal();
    sealed_ = false;
    queued_.clear();
  }
  for (std::size_t on = 0; on < kStreams; ++on) {
    if (auto wrong = let_go(on)) {
      return wrong;
    }
  }
  while (!live_.empty()) {
    if (auto wrong = free(0, live_.size() % 2 == 0 ? std::nullopt : std::optional(live_[0].stream))) {
      return wrong;
    }
  }
  heap_->seal();
  sealed_ = true;
  heap_->drain_queue();
  consolidate();
  Pages unused;
  for (const PageRange range : heap_->unused_pages()) {
    unused += range.count;
  }
  if (unused != source_->backed()) {
    return fmt::format("{} pages are unused in the end, {} are backed", unused.count(), source_->backed().count());
  }
  return check_account();
}

} // namespace stillwake
