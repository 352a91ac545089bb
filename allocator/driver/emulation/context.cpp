// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/context.h"

namespace stillwake::emulation {
namespace {

std::atomic<std::uint64_t> next_id{1};

using Stacks = std::vector<std::pair<std::uint64_t, std::vector<Context*>>>;

// A thread's stacks go with the thread. Destructors of static objects run later than that on the main thread, and may
// still call: then they get stacks that nobody frees.
thread_local Stacks* stacks = nullptr;
thread_local bool thread_is_ending = false;
struct StacksOwner {
  ~StacksOwner() {
    delete stacks;
    stacks = nullptr;
    thread_is_ending = true;
  }
};

Stacks& stacks_of_thread() {
  if (stacks == nullptr) {
    stacks = new Stacks;
    if (!thread_is_ending) {
      thread_local StacksOwner owner; // NOLINT(clang-diagnostic-exit-time-destructors): of its thread alone
      static_cast<void>(owner);
    }
  }
  return *stacks;
}

} // namespace

CurrentContexts::CurrentContexts() : id_(next_id++) {}

std::vector<Context*>& CurrentContexts::stack() const {
  Stacks& all = stacks_of_thread();
  for (auto& [id, stack] : all) {
    if (id == id_) {
      return stack;
    }
  }
  // Stacks that are empty belong to emulations that may be gone.
  std::erase_if(all, [](const auto& entry) { return entry.second.empty(); });
  return all.emplace_back(id_, std::vector<Context*>()).second;
}

void CurrentContexts::push(Context& context) { stack().push_back(&context); }

Context* CurrentContexts::pop() {
  std::vector<Context*>& contexts = stack();
  if (contexts.empty()) {
    return nullptr;
  }
  Context* const last = contexts.back();
  contexts.pop_back();
  return last;
}

Context* CurrentContexts::top() const {
  const std::vector<Context*>& contexts = stack();
  return contexts.empty() ? nullptr : contexts.back();
}

bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

} // namespace stillwake::emulation
