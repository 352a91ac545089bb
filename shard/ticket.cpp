// SPDX-License-Identifier: Apache-2.0
#include "shard/ticket.h"

#include "shard/waking.h"

namespace stillwake {

Result<void> Ticket::wait(Stream stream) {
  if (waking_ == nullptr) {
    return failure(moved_from("Ticket"));
  }
  return waking_->wait_all(stream);
}
Result<void> Ticket::wait(Stream stream, const void* pointer, Bytes size) {
  if (waking_ == nullptr) {
    return failure(moved_from("Ticket"));
  }
  return waking_->wait_range(stream, DeviceAddress(pointer), size);
}
bool Ticket::is_done() const { return not_moved_from(waking_, "Ticket").is_done(); }
Result<Report> Ticket::result() {
  if (waking_ == nullptr) {
    return failure(moved_from("Ticket"));
  }
  return waking_->result();
}

} // namespace stillwake
