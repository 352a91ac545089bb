// SPDX-License-Identifier: Apache-2.0
// A PoolWatch brings what a thread makes inside a pool under the guard of its shard. An allocator sees memory and no
// storage object, so this looks at what operators answer, through the hook that PyTorch's profilers have.
#pragma once

namespace stillwake::pytorch {

class PoolWatch {
public:
  /// From now on what the thread's operators make in a shard is guarded. Nests.
  static void begin();
  static void end();
};

} // namespace stillwake::pytorch
