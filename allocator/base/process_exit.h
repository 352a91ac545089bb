// SPDX-License-Identifier: Apache-2.0
// Once the process is exiting, or in a child made by fork, nothing calls the driver: handles are leaked on purpose.
#pragma once

namespace stillwake {

/// Notes the process that opens a driver; called once by every Driver::open.
void note_process_start();
/// True while exit handlers run, and in a forked child of the process that opened a driver.
bool driver_is_out_of_reach();

} // namespace stillwake
