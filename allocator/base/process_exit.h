// SPDX-License-Identifier: Apache-2.0
// Once the process is exiting, or in a child made by fork, nothing calls the driver: handles are leaked on purpose.
#pragma once

namespace stillwake {

/// Notes the process that opens a driver; called once by every Driver::open.
void note_process_start();
/// Registers an exit handler now: what the program does at its exit for objects that were complete before (destroying
/// them, above all) comes after the driver was put out of reach. Any thread; a few bytes each time, for ever.
void watch_for_exit();
/// True while exit handlers run, and in a forked child of the process that opened a driver.
bool driver_is_out_of_reach();
/// Remembers for ever what is leaked on purpose, so that leak checkers reach it. Any thread.
void keep_within_reach(const void* leaked);

} // namespace stillwake
