// SPDX-License-Identifier: Apache-2.0
// The transfer layer in one include.
#pragma once

#include "allocator/transfer/page_digest.h"
#include "allocator/transfer/page_task.h"
#include "allocator/transfer/transfer_engine.h"
