// SPDX-License-Identifier: Apache-2.0
#include "allocator/driver/emulation/refusal_note.h"

#include <cstdio>

namespace stillwake::emulation {
namespace {

// No destructor: destructors of static objects may still call when those of the thread have run.
struct Note {
  CallId running = CallId::kCount;
  CallId noted = CallId::kCount;
  char text[512] = "";
};
thread_local Note note;

} // namespace

void begin_call(CallId call) {
  note.running = call;
  if (note.noted == call) {
    note.noted = CallId::kCount;
  }
}

void note_refusal(const std::string& sentence) {
  note.noted = note.running;
  std::snprintf(note.text, sizeof(note.text), "%s", sentence.c_str());
}

std::string refusal_note(CallId call) { return note.noted == call ? note.text : ""; }

} // namespace stillwake::emulation
