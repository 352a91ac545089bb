// SPDX-License-Identifier: Apache-2.0
// Compiled once for the whole library: PyTorch's headers take longer than all of ours.
// No "pragma once": a precompiled header is a main file.

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
