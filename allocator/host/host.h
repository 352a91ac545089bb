// SPDX-License-Identifier: Apache-2.0
// The host layer in one include: pinned memory, budget, mirrors.
#pragma once

#include "allocator/host/host_arena.h"
#include "allocator/host/host_budget.h"
#include "allocator/host/mirror.h"
#include "allocator/host/pinned_buffer.h"
