// SPDX-License-Identifier: Apache-2.0
// A refusal note is the sentence behind the number that a call of the emulated driver answered: which file had no room,
// which limit stood in the way. A thread has one, of its last call that left one.
#pragma once

#include "allocator/driver/calls.h"

#include <string>

namespace stillwake::emulation {

/// A call begins on this thread: an older note of the same call is over.
void begin_call(CallId call);
/// Notes why the call that runs on this thread is about to fail; at most 511 characters are kept.
void note_refusal(const std::string& sentence);
/// The note of this thread's last call of that name, "" where it left none.
std::string refusal_note(CallId call);

} // namespace stillwake::emulation
