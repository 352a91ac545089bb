// SPDX-License-Identifier: Apache-2.0
// The memory layer in one include: one owner a driver handle, nothing decided here.
#pragma once

#include "allocator/memory/physical.h"
#include "allocator/memory/reservation.h"
