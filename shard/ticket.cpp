// SPDX-License-Identifier: Apache-2.0
#include "shard/ticket.h"

#include "shard/waking.h"

namespace stillwake {

Result<void> Ticket::wait(Stream stream) { return waking_->wait_all(stream); }
Result<void> Ticket::wait(Stream stream, const void* pointer, Bytes size) {
  return waking_->wait_range(stream, DeviceAddress(pointer), size);
}
bool Ticket::is_done() const { return waking_->is_done(); }
Result<Report> Ticket::result() { return waking_->result(); }

} // namespace stillwake
