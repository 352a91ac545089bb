// SPDX-License-Identifier: Apache-2.0
// Stillwake in one include: CUDA memory that sleeps and wakes without one pointer changing.
#pragma once

#include "../allocator/driver/driver.h"
#include "host_memory.h"
#include "shard.h"
#include "ticket.h"
#include "transition.h"
