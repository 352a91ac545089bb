// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/call_gate.h"

#include "allocator/driver/error_names.h"

#include <charconv>
#include <mutex>

namespace stillwake {
namespace {

std::optional<CallId> call_by_name(std::string_view name) {
  for (int id = 0; id < static_cast<int>(CallId::kCount); ++id) {
    if (name == to_string(static_cast<CallId>(id))) {
      return static_cast<CallId>(id);
    }
  }
  return std::nullopt;
}

bool takes_memory(CallId call) {
  switch (call) {
  case CallId::cuMemAlloc:
  case CallId::cuMemAddressReserve:
  case CallId::cuMemCreate:
  case CallId::cuMemMap:
  case CallId::cuMemSetAccess:
  case CallId::cuMemHostRegister: return true;
  default: return false;
  }
}

tl::unexpected<Error> wrong(std::string_view entry, const std::string& why) {
  return failure(ErrorCode::kInvalidArgument,
                 "the fault '" + std::string(entry) + "' " + why +
                     "; write CALL:NTH, * for any call, + for all later ones too, =ERROR for its error, separated by "
                     "commas, as in cuMemCreate:3,cuMemMap:2=CUDA_ERROR_NOT_READY,*:17,cuMemUnmap:1+");
}

Result<Fault> parse_one(std::string_view entry) {
  Fault fault;
  const std::size_t colon = entry.find(':');
  if (colon == std::string_view::npos) {
    return wrong(entry, "has no ':'");
  }
  const std::string_view name = entry.substr(0, colon);
  if (name != "*") {
    fault.call = call_by_name(name);
    if (!fault.call) {
      return wrong(entry, "names no driver call that is made");
    }
    fault.error = takes_memory(*fault.call) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
  }
  const char* end = entry.data() + entry.size();
  const auto [rest, failed] = std::from_chars(entry.data() + colon + 1, end, fault.nth);
  if (failed != std::errc{} || fault.nth == 0) {
    return wrong(entry, "has no count of 1 or more after the ':'");
  }
  std::string_view tail(rest, static_cast<std::size_t>(end - rest));
  if (!tail.empty() && tail.front() == '+') {
    fault.persistent = true;
    tail.remove_prefix(1);
  }
  if (!tail.empty() && tail.front() == '=') {
    const std::optional<CUresult> error = error_by_name(tail.substr(1));
    if (!error) {
      return wrong(entry, "names no error of the driver");
    }
    fault.error = *error;
    tail = {};
  }
  if (!tail.empty()) {
    return wrong(entry, "has '" + std::string(tail) + "' at its end");
  }
  return fault;
}

std::atomic<std::uint64_t> last_arming{0};

// By call: the arming that made this thread's last call of that name fail, 0 where the call was made.
thread_local std::array<std::uint64_t, static_cast<std::size_t>(CallId::kCount)> failed_by_arming{};

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  const std::size_t last = text.find_last_not_of(" \t");
  return first == std::string_view::npos ? std::string_view() : text.substr(first, last - first + 1);
}

} // namespace

Result<std::vector<Fault>> CallGate::parse(std::string_view text) {
  std::vector<Fault> faults;
  if (trimmed(text).empty()) {
    return faults;
  }
  while (true) {
    const std::size_t comma = text.find(',');
    Result<Fault> fault = parse_one(trimmed(text.substr(0, comma)));
    STILLWAKE_TRY(fault);
    faults.push_back(*fault);
    if (comma == std::string_view::npos) {
      return faults;
    }
    text.remove_prefix(comma + 1);
  }
}

void CallGate::arm(std::vector<Fault> faults) {
  const RankedLock lock(mutex_);
  faults_.clear();
  for (Fault& fault : faults) {
    faults_.push_back({fault, 0});
  }
  injected_ = 0;
  arming_ = ++last_arming;
  armed_ = !faults_.empty();
}

std::uint64_t CallGate::calls() const {
  std::uint64_t sum = 0;
  for (const std::atomic<std::uint64_t>& count : calls_) {
    sum += count.load(std::memory_order_relaxed);
  }
  return sum;
}

CUresult CallGate::enter(CallId call) {
  const std::size_t index = static_cast<std::size_t>(call);
  calls_[index].fetch_add(1, std::memory_order_relaxed);
  if (!armed_.load(std::memory_order_relaxed)) [[likely]] {
    return CUDA_SUCCESS;
  }
  CUresult injected = CUDA_SUCCESS;
  {
    const RankedLock lock(mutex_);
    for (ArmedFault& armed : faults_) {
      const Fault& fault = armed.fault;
      if (fault.call && *fault.call != call) {
        continue;
      }
      ++armed.seen;
      const bool hit = fault.persistent ? armed.seen >= fault.nth : armed.seen == fault.nth;
      if (hit && injected == CUDA_SUCCESS) {
        injected = fault.error;
      }
    }
  }
  failed_by_arming[index] = injected != CUDA_SUCCESS ? arming_.load() : 0;
  if (injected != CUDA_SUCCESS) {
    injected_.fetch_add(1, std::memory_order_relaxed);
    leave(call, injected); // the table does not: the call was not made
  }
  return injected;
}

bool CallGate::was_injected(CallId call) const {
  const std::uint64_t arming = failed_by_arming[static_cast<std::size_t>(call)];
  return arming != 0 && arming == arming_;
}

void CallGate::leave(CallId call, CUresult result) {
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) [[unlikely]] {
    failures_[static_cast<std::size_t>(call)].fetch_add(1, std::memory_order_relaxed);
  }
}

} // namespace stillwake
