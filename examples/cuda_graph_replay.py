# SPDX-License-Identifier: Apache-2.0
"""A CUDA graph captured before a sleep replays after the wake: no new capture, the same results.

    python examples/cuda_graph_replay.py [--width N] [--cycles N]      (needs a GPU; ends with 77 without one)

The weights lie in one shard, everything the graph wrote into (its pool) in another.
"""
import argparse
import sys

import stillwake as sw
import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--cycles", type=int, default=3)
    options = parser.parse_args()
    for name in ("width", "cycles"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: 1 or more are possible")
    if not torch.cuda.is_available() or sw.driver().kind != "cuda":
        print("cuda_graph_replay: CUDA graphs need a GPU and the CUDA driver; there is none here")
        return 77

    print(sw.driver())
    torch.manual_seed(0)
    weights, graphs = sw.shard("weights"), sw.shard("graphs")
    with weights.pool():
        model = nn.Sequential(*(nn.Linear(options.width, options.width) for _ in range(4))).cuda().requires_grad_(False)
        inputs = torch.randn(64, options.width, device="cuda")
    sw.adopt([model, {"inputs": inputs}], weights)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(inputs)  # warm up, so that the capture finds cuBLAS ready
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=graphs.mem_pool(for_graphs=True).id):
        outputs = model(inputs)
    graph.replay()
    wanted = outputs.clone()
    named = [*model.named_parameters(), ("in", inputs), ("out", outputs)]
    addresses = {name: value.data_ptr() for name, value in named}

    different = changed = 0
    for cycle in range(options.cycles):
        free_before = torch.cuda.mem_get_info()[0]
        slept = sw.sleep()
        gained = torch.cuda.mem_get_info()[0] - free_before
        woken = sw.wake()
        outputs.zero_()
        graph.replay()
        different += not torch.equal(outputs, wanted)
        changed += sum(value.data_ptr() != addresses[name]
                       for name, value in [*model.named_parameters(), ("in", inputs), ("out", outputs)])
        print(f"cycle {cycle + 1}: {gained} bytes of the device came free\n  {slept}\n  {woken}")
    print(f"pointers changed: {changed} of {len(addresses) * options.cycles}")
    print(f"replays different from before the sleep: {different} of {options.cycles}")
    return 1 if changed or different else 0


if __name__ == "__main__":
    sys.exit(main())
