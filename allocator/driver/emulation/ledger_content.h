// SPDX-License-Identifier: Apache-2.0
// What a ledger file holds is input: another program may have written it, or it was damaged. It is looked at here
// before it is trusted. What the figures cannot show (another start time of a process, say) passes.
#pragma once

#include "allocator/driver/emulation/ledger_table.h"

#include <optional>
#include <string>
#include <sys/stat.h>

namespace stillwake::emulation {

enum class LedgerContent {
  kNew,    ///< empty, or begun by a process that died before it wrote the magic: nobody uses it yet
  kLedger, ///< has the size and the magic of this version
  kOther,  ///< anything else: not ours to change
};
LedgerContent ledger_content(int file, const struct stat& status);

/// Makes the table's mutex. Nobody uses it.
void make_mutex(LedgerTable& table);

/// What is wrong with that part of the table which is not written while somebody uses the share; nothing if it can be.
std::optional<std::string> header_fault(const LedgerTable& table);
/// The same for members, devices and claims. With the table's lock held.
std::optional<std::string> rows_fault(const LedgerTable& table);
/// Whether the claim lies on a device that there is, within its file.
bool can_be(const LedgerTable& table, const LedgerTable::Holding& claim);

/// Sets `used` of every device from the claims. With the table's lock held.
void count_again(LedgerTable& table);

} // namespace stillwake::emulation
