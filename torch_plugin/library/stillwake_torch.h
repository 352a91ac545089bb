// SPDX-License-Identifier: Apache-2.0
// Stillwake for LibTorch in one include. Everything is in stillwake::pytorch and throws TorchError, or
// c10::OutOfMemoryError for a full device.
#pragma once

#include "torch_plugin/library/adopt.h"
#include "torch_plugin/library/global_allocator.h"
#include "torch_plugin/library/host_view.h"
#include "torch_plugin/library/modules.h"
#include "torch_plugin/library/pool.h"
#include "torch_plugin/library/session.h"
#include "torch_plugin/library/strays.h"
#include "torch_plugin/library/torch_error.h"
#include "torch_plugin/library/transitions.h"
