// SPDX-License-Identifier: Apache-2.0
#include "shard/ticket.h"

#include "allocator/base/base.h"
#include "shard/waking.h"

namespace stillwake {

Result<void> Ticket::check_usable() const {
  STILLWAKE_TRY(in_reach());
  if (waking_ == nullptr) {
    return failure(moved_from("Ticket"));
  }
  return {};
}

Result<void> Ticket::wait(Stream stream) {
  STILLWAKE_TRY(check_usable());
  return waking_->wait_all(stream);
}
Result<void> Ticket::wait(Stream stream, const void* pointer, Bytes size) {
  STILLWAKE_TRY(check_usable());
  return waking_->wait_range(stream, DeviceAddress(pointer), size);
}
bool Ticket::is_done() const {
  auto& waking = not_moved_from(waking_, "Ticket");
  return !in_reach() || waking.is_done();
}
Result<Report> Ticket::result() {
  STILLWAKE_TRY(check_usable());
  return in_one_piece("settling a wake", [&] { return waking_->result(); });
}

} // namespace stillwake
