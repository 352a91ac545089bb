// SPDX-License-Identifier: Apache-2.0
#include "shard/at_once.h"

#include <vector>

namespace stillwake {

void run_at_once(const DriverTable& table, const std::string& what, std::size_t count,
                 const std::function<void(std::size_t)>& step) {
  std::vector<std::thread> others;
  others.reserve(count);
  const Cleanup join([&others] { // also when a step throws
    for (std::thread& other : others) {
      other.join();
    }
  });
  while (others.size() + 1 < count) {
    auto started = start_thread(what, [&step, at = others.size() + 1] { step(at); });
    if (!started) {
      table.log(LogLevel::kWarning, (started.error().describe() + "; it is done one after the other").c_str());
      break;
    }
    others.push_back(std::move(*started));
  }
  const std::size_t first_left = others.size() + 1;
  if (count > 0) {
    step(0);
  }
  for (std::size_t at = first_left; at < count; ++at) {
    step(at);
  }
}

} // namespace stillwake
