// SPDX-License-Identifier: Apache-2.0
// Reports, statistics and tickets as Python sees them.
#pragma once

#include <pybind11/pybind11.h>

namespace stillwake::pytorch {

void bind_reports(pybind11::module_& module);

} // namespace stillwake::pytorch
