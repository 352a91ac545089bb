// SPDX-License-Identifier: Apache-2.0
// The heap layer in one include.
#pragma once

#include "allocator/heap/extent_source.h"
#include "allocator/heap/heap.h"
