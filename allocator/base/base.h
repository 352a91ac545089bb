// SPDX-License-Identifier: Apache-2.0
// The base layer in one include: units, errors, results, clock, log, cleanup, checks, locks, threads, libraries.
#pragma once

#include "allocator/base/cgroup_limit.h"
#include "allocator/base/check.h"
#include "allocator/base/cleanup.h"
#include "allocator/base/clock.h"
#include "allocator/base/dynamic_library.h"
#include "allocator/base/error.h"
#include "allocator/base/heap_memory.h"
#include "allocator/base/hexadecimal.h"
#include "allocator/base/in_reach.h"
#include "allocator/base/kept_at_exit.h"
#include "allocator/base/log.h"
#include "allocator/base/moved_from.h"
#include "allocator/base/process_exit.h"
#include "allocator/base/ranked_mutex.h"
#include "allocator/base/result.h"
#include "allocator/base/sizes.h"
#include "allocator/base/start_thread.h"
#include "allocator/base/units.h"
