// SPDX-License-Identifier: Apache-2.0
// Stillwake for LibTorch in one include. Everything is in stillwake::pytorch and throws TorchError, or
// c10::OutOfMemoryError for a full device.
#pragma once

#include "adopt.h"
#include "global_allocator.h"
#include "host_view.h"
#include "modules.h"
#include "pool.h"
#include "session.h"
#include "strays.h"
#include "torch_error.h"
#include "transitions.h"
