// SPDX-License-Identifier: Apache-2.0
// The C header alone, as C++17.
#include "shard/stillwake_c.h"

int main() { return stillwake_version()[0] == '0' ? 0 : 1; }
