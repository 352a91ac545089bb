// SPDX-License-Identifier: Apache-2.0
// How C++ errors become Python's: the classes are the package's own (stillwake/errors.py), one a code.
#pragma once

#include <pybind11/pybind11.h>

namespace stillwake::pytorch {

/// Adds set_error_classes to the module and translates what its functions throw from then on.
void bind_errors(pybind11::module_& module);

} // namespace stillwake::pytorch
