// SPDX-License-Identifier: Apache-2.0
// What becomes of a call that changes state when operator new has no memory left in the middle of it: the process ends,
// with a sentence. What would be left half done could be neither finished nor undone without that memory.
#pragma once

#include <new>
#include <utility>

namespace stillwake {

namespace detail {
[[noreturn]] void end_without_heap(const char* doing);
} // namespace detail

/// What `work` answers. Other exceptions, an owner's own, pass.
template <class Work> decltype(auto) in_one_piece(const char* doing, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    detail::end_without_heap(doing);
  }
}

} // namespace stillwake
