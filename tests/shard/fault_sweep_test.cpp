// SPDX-License-Identifier: Apache-2.0
// FR-B4, FR-C2: every driver call of every operation fails once, at every place where it is made. Each time nothing
// leaks, the state is one that the interface names, and after a retry every byte is right.
#include "tests/shard/shard_fixture.h"

#include <functional>

namespace stillwake {
namespace {

constexpr Bytes kLarge = kMiB * 5;

/// Two shards that take turns, and one that is discarded, with content that the sweep can check at any time.
class FaultSweep : public ShardTest {
protected:
  struct Block {
    Shard* shard;
    void* pointer;
    Bytes size;
    std::uint64_t seed;
  };

  void SetUp() override {
    open(1, kMiB * 128);
    if (!emulated()) {
      GTEST_SKIP() << "calls are counted on the emulation, where no neighbour's calls come between";
    }
    ASSERT_OK(set_pinning_threads(*driver_, 1)); // one thread: the nth call is the same call each time
    weights_.emplace(make_shard("weights"));
    other_.emplace(make_shard("other"));
    cache_.emplace(make_shard("cache", Policy::kDiscard));
    for (Shard* shard : {&*weights_, &*other_, &*cache_}) {
      for (const Bytes size : {Bytes(700), kLarge, kMiB * 2, kKiB * 300}) {
        add(*shard, size);
      }
    }
    ASSERT_OK(sleep({&*other_}));
  }
  void TearDown() override {
    gate_open();
    weights_.reset();
    other_.reset();
    cache_.reset();
    ShardTest::TearDown();
  }

  void add(Shard& shard, Bytes size) {
    void* pointer = allocate(shard, size);
    blocks_.push_back({&shard, pointer, size, blocks_.size() + 1});
    fill(pointer, blocks_.back().seed, size);
  }
  /// New content in every awake block: the next sleep has to copy.
  void change(Shard& shard) {
    for (Block& block : blocks_) {
      if (block.shard == &shard) {
        block.seed += 1000;
        fill(block.pointer, block.seed, block.size);
      }
    }
  }
  void gate_open() {
    if (driver_) {
      gate().arm({});
    }
  }

  void expect_content(Shard& shard) {
    for (const Block& block : blocks_) {
      if (block.shard == &shard) {
        EXPECT_TRUE(holds(block.pointer, block.seed, block.size));
      }
    }
  }
  void expect_no_leak() {
    std::uint64_t handles = 0;
    std::vector<Shard*> all = {&*weights_, &*other_, &*cache_};
    all.insert(all.end(), others_.begin(), others_.end());
    for (Shard* shard : all) {
      handles += shard->stats().handles;
      if (shard->core().stored_state() == ShardState::kAwake || shard->core().stored_state() == ShardState::kAsleep) {
        shard->core().check_invariants();
      }
    }
    EXPECT_EQ(emulation().live_handles(), handles);
  }

  /// `ready` brings everything to the same start; `operation` is swept; `after_failure` checks what a failure left;
  /// then the operation is done again without faults and must succeed.
  int sweep(const char* name, const std::function<void()>& ready, const std::function<Result<void>()>& operation,
            const std::function<void()>& after_failure, const std::function<void()>& after_success) {
    int places = 0;
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(std::string(name) + ", call " + std::to_string(nth) + " fails");
      ready();
      gate().arm({Fault{std::nullopt, nth, nth % 2 == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN, false}});
      const Result<void> done = operation();
      const bool injected = gate().injected() > 0;
      gate_open();
      expect_no_leak();
      if (!injected) {
        EXPECT_OK(done);
        after_success();
        break;
      }
      ++places;
      if (!done) {
        after_failure();
        if (::testing::Test::HasFailure()) {
          ADD_FAILURE() << "the failure was: " << done.error().describe();
          break;
        }
        EXPECT_OK(operation());
      }
      after_success();
      if (::testing::Test::HasFailure() || nth > 5000) {
        break;
      }
    }
    std::printf("%s: failed at %d places\n", name, places);
    EXPECT_GT(places, 0);
    return places;
  }

  static Result<void> outcome(Result<Report> report) {
    return report ? Result<void>() : Result<void>(failure(std::move(report).error()));
  }
  void wake_all_but_other() { EXPECT_OK(wake({&*weights_, &*cache_})); }

  std::optional<Shard> weights_;
  std::optional<Shard> other_;
  std::optional<Shard> cache_;
  std::vector<Shard*> others_; // of one test
  std::vector<Block> blocks_;
};

TEST_F(FaultSweep, FirstSleepThatPins) {
  sweep(
      "sleep, nothing pinned", [&] { ASSERT_OK(weights_->trim()); },
      [&] {
        return outcome(sleep({&*weights_, &*cache_}));
      },
      [&] {
        EXPECT_EQ(weights_->state(), ShardState::kAwake);
        EXPECT_EQ(cache_->state(), ShardState::kAwake);
        expect_content(*weights_);
        expect_content(*cache_);
      },
      [&] {
        EXPECT_EQ(weights_->state(), ShardState::kAsleep);
        ASSERT_OK(sleep({&*weights_, &*cache_})); // gives back what did not go at first
        EXPECT_EQ(weights_->stats().mapped, Bytes(0));
        EXPECT_EQ(weights_->stats().handles, 0u);
        wake_all_but_other();
        expect_content(*weights_);
        change(*cache_);
      });
}

TEST_F(FaultSweep, LaterSleepThatCopiesWhatChanged) {
  sweep(
      "sleep, pinned, changed", [&] { change(*weights_); }, [&] { return outcome(sleep({&*weights_})); },
      [&] {
        EXPECT_EQ(weights_->state(), ShardState::kAwake);
        expect_content(*weights_);
      },
      [&] {
        EXPECT_EQ(weights_->state(), ShardState::kAsleep);
        EXPECT_OK(wake({&*weights_}));
        expect_content(*weights_);
      });
}

TEST_F(FaultSweep, Wake) {
  sweep(
      "wake",
      [&] {
        ASSERT_OK(sleep({&*weights_, &*cache_}));
      },
      [&] {
        return outcome(wake({&*weights_, &*cache_}));
      },
      [&] {
        // Asleep, or on its way when the call that failed was one that waited for the verdict.
        EXPECT_TRUE(weights_->state() == ShardState::kAsleep || weights_->state() == ShardState::kWaking ||
                    weights_->state() == ShardState::kAwake)
            << to_string(weights_->state());
      },
      [&] {
        EXPECT_EQ(weights_->state(), ShardState::kAwake);
        EXPECT_EQ(cache_->state(), ShardState::kAwake);
        expect_content(*weights_);
        for (const Block& block : blocks_) {
          if (block.shard == &*cache_) {
            EXPECT_TRUE(is_zero(block.pointer, block.size));
          }
        }
      });
}

TEST_F(FaultSweep, Swap) {
  Shard* in = &*weights_;
  Shard* out = &*other_;
  sweep(
      "swap",
      [&] {
        std::swap(in, out);
        change(*out);
      },
      [&] { return outcome(swap({out}, {in})); },
      [&] {
        EXPECT_EQ(out->state(), ShardState::kAwake);
        EXPECT_EQ(in->state(), ShardState::kAsleep);
        expect_content(*out);
      },
      [&] {
        EXPECT_EQ(out->state(), ShardState::kAsleep);
        EXPECT_EQ(in->state(), ShardState::kAwake);
        expect_content(*in);
      });
}

TEST_F(FaultSweep, Allocate) {
  std::vector<void*> got;
  Shard growing = make_shard("growing");
  others_.push_back(&growing);
  sweep(
      "allocate", [] {},
      [&]() -> Result<void> {
        auto block = growing.allocate(kMiB * 3, nullptr);
        STILLWAKE_TRY(block);
        got.push_back(*block);
        return {};
      },
      [] {},
      [&] {
        fill(got.back(), got.size(), kMiB * 3);
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(holds(got[i], i + 1, kMiB * 3));
        }
      });
}

TEST_F(FaultSweep, PrepareAndTrim) {
  sweep(
      "prepare", [&] { ASSERT_OK(weights_->trim()); }, [&] { return weights_->prepare(); },
      [&] { expect_content(*weights_); },
      [&] {
        EXPECT_OK(sleep({&*weights_}));
        EXPECT_OK(wake({&*weights_}));
        expect_content(*weights_);
      });
  sweep(
      "trim", [&] { ASSERT_OK(weights_->prepare()); },
      [&]() -> Result<void> {
        STILLWAKE_TRY(weights_->trim());
        return {};
      },
      [&] { expect_content(*weights_); },
      [&] {
        EXPECT_EQ(weights_->stats().host_pinned, Bytes(0));
        expect_content(*weights_);
      });
}

TEST_F(FaultSweep, DestroyInEveryState) {
  const std::uint64_t reservations = emulation().live_reservations();
  const std::uint64_t registrations = emulation().live_registrations();
  std::optional<Shard> going;
  const auto make = [&](const std::function<void()>& bring_to_state) {
    going.emplace(make_shard("going"));
    fill(allocate(*going, kLarge), 1, kLarge);
    fill(allocate(*going, kMiB * 3), 2, kMiB * 3);
    bring_to_state();
  };
  const std::function<void()> go_to_sleep = [&] { ASSERT_OK(sleep({&*going})); };
  const std::pair<const char*, std::function<void()>> states[] = {
      {"destroy, awake", [] {}},
      {"destroy, asleep", go_to_sleep},
      {"destroy, awake again",
       [&] {
         go_to_sleep();
         ASSERT_OK(wake({&*going}));
       }},
      {"destroy, waking",
       [&] {
         go_to_sleep();
         ASSERT_OK(wake({&*going}, {nullptr}));
       }},
  };
  for (const auto& [name, bring_to_state] : states) {
    sweep(
        name, [&] { make(bring_to_state); },
        [&]() -> Result<void> {
          going.reset();
          return {};
        },
        [] {},
        [&] {
          EXPECT_EQ(emulation().live_reservations(), reservations);
          EXPECT_EQ(emulation().live_registrations(), registrations);
          expect_content(*weights_);
        });
  }
}

} // namespace
} // namespace stillwake
