// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/cpu_scope.h"

#include "torch_plugin/library/pool_scopes.h"
#include "torch_plugin/library/session.h"
#include "torch_plugin/library/torch_error.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>

namespace stillwake::pytorch {
namespace {

constexpr std::uint8_t kPriority = 1; // above the default's 0

/// Stands before PyTorch's CPU allocator from the first scope on, for ever: what it gave may be freed at any time.
class ScopedCpuAllocator final : public c10::Allocator {
public:
  explicit ScopedCpuAllocator(c10::Allocator* usual) : usual_(usual) { the_usual = usual->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    TensorShard* shard = CpuScope::current();
    return shard == nullptr ? usual_->allocate(bytes) : shard->allocator().allocate(bytes);
  }
  /// One deleter for both kinds, since a raw block does not say where it came from.
  c10::DeleterFnPtr raw_deleter() const override { return &free_either; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  c10::Allocator* usual() const { return usual_; }

private:
  static void free_either(void* block) {
    if (TensorShard* shard = Session::get().find(block)) {
      shard->free(block);
    } else {
      the_usual(block);
    }
  }

  static inline c10::DeleterFnPtr the_usual = nullptr;
  c10::Allocator* usual_;
};

std::atomic<ScopedCpuAllocator*> installed{nullptr};

ScopedCpuAllocator& install() {
  static ScopedCpuAllocator* ours = [] {
    auto* made = new ScopedCpuAllocator(c10::GetCPUAllocator()); // never destroyed
    c10::SetCPUAllocator(made, kPriority);
    installed.store(made, std::memory_order_release);
    return made;
  }();
  return *ours;
}

} // namespace

void CpuScope::enter(TensorShard& shard) {
  if (!shard.device().is_cpu()) {
    throw TorchError(ErrorCode::kInvalidArgument, "a CPU scope of shard '" + shard.name() + "', which is on " +
                                                      shard.device().str() + "; use its pool");
  }
  const ScopedCpuAllocator& ours = install();
  if (c10::GetCPUAllocator() != &ours) {
    throw TorchError(ErrorCode::kBusy, "another library has put its CPU allocator before Stillwake's; CPU pools cannot "
                                       "work in this process");
  }
  PoolScopes::enter(shard);
}

void CpuScope::leave(TensorShard& shard) { PoolScopes::leave(shard); }

TensorShard* CpuScope::current() noexcept {
  TensorShard* shard = PoolScopes::innermost();
  return shard != nullptr && shard->device().is_cpu() ? shard : nullptr;
}

c10::Allocator* CpuScope::usual_allocator() {
  const ScopedCpuAllocator* ours = installed.load(std::memory_order_acquire);
  return ours == nullptr ? c10::GetCPUAllocator() : ours->usual();
}

} // namespace stillwake::pytorch
