// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/context.h"

namespace stillwake::emulation {
namespace {

std::atomic<std::uint64_t> next_id{1};

} // namespace

CurrentContexts::CurrentContexts() : id_(next_id++) {}

std::vector<Context*>& CurrentContexts::stack() const {
  thread_local std::vector<std::pair<std::uint64_t, std::vector<Context*>>> stacks;
  for (auto& [id, stack] : stacks) {
    if (id == id_) {
      return stack;
    }
  }
  // Stacks that are empty belong to emulations that may be gone.
  std::erase_if(stacks, [](const auto& entry) { return entry.second.empty(); });
  return stacks.emplace_back(id_, std::vector<Context*>()).second;
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
