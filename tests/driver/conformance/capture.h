// SPDX-License-Identifier: Apache-2.0
// A CapturedGraph is what a capture ended with, instantiated, and given back when the test ends.
#pragma once

#include "tests/driver/conformance/conformance.h"

namespace stillwake {

class CapturedGraph {
public:
  /// Ends the capture of a stream.
  CapturedGraph(DriverTable& table, CUstream capturing) : table_(table) {
    EXPECT_ANSWER(CUDA_SUCCESS, table_.cuStreamEndCapture(capturing, &graph_));
    EXPECT_NE(graph_, nullptr);
    if (graph_ != nullptr) {
      EXPECT_ANSWER(CUDA_SUCCESS, table_.cuGraphInstantiateWithFlags(&exec_, graph_, 0));
      EXPECT_ANSWER(CUDA_SUCCESS, table_.cuGraphDestroy(graph_)); // what was instantiated does not need it
    }
  }
  ~CapturedGraph() {
    if (exec_ != nullptr) {
      EXPECT_ANSWER(CUDA_SUCCESS, table_.cuGraphExecDestroy(exec_));
    }
  }
  CapturedGraph(const CapturedGraph&) = delete;

  void launch(CUstream stream) { EXPECT_ANSWER(CUDA_SUCCESS, table_.cuGraphLaunch(exec_, stream)); }

private:
  DriverTable& table_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

} // namespace stillwake
