// SPDX-License-Identifier: Apache-2.0
// What the shards of a driver share, and what one may do while another is busy with it.
#include "tests/shard/stream_work.h"

#include <condition_variable>
#include <future>

namespace stillwake {
namespace {

/// Holds the next unpinning up until it is let go.
class UnpinningHeldUp {
public:
  explicit UnpinningHeldUp(DriverTable& table) : table_(table), real_(table.cuMemHostUnregister) {
    table_.cuMemHostUnregister.bind_method<&UnpinningHeldUp::call>(table_.gate, CallId::cuMemHostUnregister, *this);
  }
  ~UnpinningHeldUp() { table_.cuMemHostUnregister = real_; }
  CUresult call(void* pointer) {
    {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return let_go_; });
    }
    return real_(pointer);
  }
  void wait_for_one() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  void let_go() {
    {
      const std::lock_guard lock(mutex_);
      let_go_ = true;
    }
    changed_.notify_all();
  }

private:
  DriverTable& table_;
  decltype(DriverTable::cuMemHostUnregister) real_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool let_go_ = false;
};

class Registries : public ShardWork {};

TEST_F(Registries, UnpinningForAnotherShardHoldsNobodyUp) {
  std::optional<Shard> idle(make_shard("idle"));
  Shard shard = make_shard();
  constexpr Bytes kSize = kMiB * 16;
  fill(allocate(*idle, kSize), 1, kSize);
  void* block = allocate(shard, kSize);
  fill(block, 2, kSize);
  ASSERT_OK(sleep({&*idle}));
  ASSERT_OK(wake({&*idle}));
  set_host_budget(*driver_, kMiB * 20);
  UnpinningHeldUp held(table());
  std::thread sleeper([&] { EXPECT_OK(sleep({&shard})); });
  held.wait_for_one(); // what the idle shard keeps is on its way out

  ShardOptions fresh;
  fresh.name = "new";
  auto made = std::async(std::launch::async, [&] { return Shard::create(*driver_, fresh); });
  EXPECT_EQ(made.wait_for(std::chrono::seconds(10)), std::future_status::ready) << "the list of shards is locked";
  EXPECT_CODE(sleep({&*idle}), ErrorCode::kBusy); // it cannot begin another transition meanwhile, nor go
  auto destroyed = std::async(std::launch::async, [&] { idle.reset(); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);

  held.let_go();
  sleeper.join();
  destroyed.get();
  EXPECT_OK(made.get());
  ASSERT_OK(wake({&shard}));
  EXPECT_TRUE(holds(block, 2, kSize));
}

} // namespace
} // namespace stillwake
