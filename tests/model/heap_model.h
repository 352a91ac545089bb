// SPDX-License-Identifier: Apache-2.0
// A HeapModel is a heap on the emulated driver beside a plain account of what it must say: a list of blocks, their
// expected bytes, and the freed bytes whose work is still held up. Streams are held up and let go by operations, so
// that bytes given out too early are found by rule, and again by what stands in them.
#pragma once

#include "tests/heap/stream_gate.h"
#include "tests/heap/test_source.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stillwake {

struct HeapOperation {
  enum class Kind {
    kAllocate,    ///< a: size, b: stream
    kAllocateOne, ///< a: size, b: stream; behind one handle
    kFree,        ///< a: which block, b: from which stream
    kFreeOwn,     ///< a: which block
    kFreeUnknown, ///< a: which block
    kFreeWrong,   ///< a: which block, b: which mistake
    kHold,        ///< b: stream
    kFinish,      ///< b: stream
    kSeal,
    kUnseal,
    kDrain,
    kConsolidate,
    kUnback, ///< a: how many pages of the first unused run
    kFail,   ///< a: 1 the source fails, 0 it works
    kCount
  };
  Kind kind = Kind::kAllocate;
  std::uint64_t a = 0;
  std::uint64_t b = 0;

  std::string describe() const;
};

class HeapModel {
public:
  HeapModel();
  ~HeapModel();

  /// Carries one out. What was wrong, or nothing.
  std::optional<std::string> apply(const HeapOperation& operation);
  /// Lets everything finish and frees it all: no byte may be missing.
  std::optional<std::string> finish();

private:
  struct Block {
    std::byte* pointer;
    Bytes size;
    std::size_t stream;
    BlockKind kind;
    unsigned char value;
  };
  /// Bytes freed while `stream` was held up with work that may touch them, until it is let go.
  struct Danger {
    std::byte* begin;
    std::byte* end;
    std::size_t stream;
    bool own; ///< freed on that very stream: it may have them at once
  };
  using Wrong = std::optional<std::string>;

  Wrong allocate(std::uint64_t size, std::size_t stream, BlockKind kind);
  Wrong free(std::uint64_t which, std::optional<std::size_t> from);
  Wrong free_wrong(std::uint64_t which, std::uint64_t mistake);
  Wrong check_handed_out(const Block& block);
  Wrong check_content(const Block& block);
  Wrong check_account();
  Wrong unback(std::uint64_t pages);
  void consolidate();
  bool held(std::size_t stream) const { return streams_[stream].gate != nullptr; }
  bool any_held() const;
  Wrong let_go(std::size_t stream);
  void write(const Block& block, std::size_t stream);
  Wrong check_contents();
  Stream stream(std::size_t index) const { return streams_[index].stream.get(); }

  struct ModelStream {
    OwnedStream stream;
    std::unique_ptr<StreamGate> gate; ///< null: not held up
  };
  static constexpr std::size_t kStreams = 4;

  std::optional<Driver> driver_;
  Device* device_ = nullptr;
  std::unique_ptr<ContextScope> scope_;
  Reservation reservation_;
  std::unique_ptr<TestSource> source_;
  std::unique_ptr<Heap> heap_;
  std::vector<ModelStream> streams_;
  std::vector<Block> live_;
  std::vector<Block> queued_; ///< freed while sealed, not carried out
  std::vector<Danger> dangers_;
  std::byte* last_freed_ = nullptr;
  unsigned char next_value_ = 1;
  bool sealed_ = false;
};

} // namespace stillwake
