// SPDX-License-Identifier: Apache-2.0
// The driver layer in one include: the table, devices, contexts, streams and events.
#pragma once

#include "allocator/driver/call_gate.h"
#include "allocator/driver/device.h"
#include "allocator/driver/driver.h"
#include "allocator/driver/driver_table.h"
#include "allocator/driver/stream.h"
#include "allocator/driver/try_twice.h"
