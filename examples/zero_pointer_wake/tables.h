// SPDX-License-Identifier: Apache-2.0
// What zero_pointer_wake prints: the tensors with their addresses, and a transition's steps with the bus beside them.
#pragma once

#include "examples/zero_pointer_wake/model.h"

#include <string>

namespace example {

/// "20.00 GiB".
std::string size_text(stillwake::Bytes size);
/// The first copy's tensors, shortened to a screenful unless `all`.
void print_tensors(const Model& model, bool all);
/// The report's figures and its steps; `bus` is what the bus gives in the transition's direction, in bytes a second.
void print_report(const stillwake::Report& report, double bus);

} // namespace example
