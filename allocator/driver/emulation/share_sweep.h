// SPDX-License-Identifier: Apache-2.0
// Files of shares outlive processes that were killed. Whoever opens a share removes those of every other share that
// nobody uses any more.
//
// A member says that it lives by a lock on its ledger, which the system takes away when the process ends, however it
// ends, and which is seen from other containers too; process numbers are not, so both must say that nobody lives.
#pragma once

#include <string>

namespace stillwake::emulation {

/// Marks the share as used for as long as the ledger's file is open.
void hold_life_lock(int ledger);

/// Whether somebody else marked it so, or that cannot be told here.
bool may_be_held(int ledger);

/// Removes the files of this user's shares without a living member, but for the share `own`. What cannot be looked at
/// now is left alone.
void remove_dead_shares(const std::string& own);

} // namespace stillwake::emulation
