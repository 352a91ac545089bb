// SPDX-License-Identifier: Apache-2.0
// An NvtxRange names what happens until the scope ends, for profilers. Empty where the build has no NVTX header; no
// library is needed either way.
#pragma once

#ifdef STILLWAKE_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace stillwake {

class [[nodiscard]] NvtxRange {
public:
#ifdef STILLWAKE_HAVE_NVTX
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
#else
  explicit NvtxRange(const char* /*name*/) {}
  ~NvtxRange() {} // not defaulted: an unused variable of this type is no mistake
#endif
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

} // namespace stillwake
