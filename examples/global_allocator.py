# SPDX-License-Identifier: Apache-2.0
"""Stillwake as PyTorch's allocator for every CUDA tensor of the process: all of them sleep, none was told.

    python examples/global_allocator.py [--width N] [--cycles N]      (needs a GPU; ends with 77 without one)
"""
import argparse
import sys

import stillwake as sw
import torch
from torch import nn


def step(model, optimizer, number, width):
    torch.manual_seed(number)
    inputs = torch.randn(64, width, device="cuda")
    loss = (model(inputs) - inputs.flip(1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--cycles", type=int, default=3)
    options = parser.parse_args()
    for name in ("width", "cycles"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: 1 or more are possible")
    if not torch.cuda.is_available() or sw.driver().kind != "cuda":
        print("global_allocator: PyTorch's CUDA allocator needs a GPU and the CUDA driver; there is none here")
        return 77

    sw.install()  # before anything of CUDA has started
    print(sw.driver())
    runs = []
    for sleeps in (False, True):
        torch.manual_seed(0)
        shard = sw.shard("control" if not sleeps else "sleeping")
        with sw.use(shard):
            model = nn.Sequential(*(nn.Linear(options.width, options.width) for _ in range(4))).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            losses, addresses, changed = [], None, 0
            for number in range(options.cycles + 1):
                losses.append(step(model, optimizer, number, options.width))
                found = [parameter.data_ptr() for parameter in model.parameters()]
                changed += 0 if addresses is None else sum(a != b for a, b in zip(found, addresses))
                addresses = found
                if sleeps and number < options.cycles:
                    print(sw.sleep(shard))
                    print(sw.wake(shard))
        runs.append((losses, [parameter.detach().cpu() for parameter in model.parameters()], changed, len(addresses)))
    (losses, values, _, _), (slept_losses, slept_values, changed, pointers) = runs
    different = sum(a != b for a, b in zip(losses, slept_losses))
    different += sum(not torch.equal(a, b) for a, b in zip(values, slept_values))
    print(f"pointers changed: {changed} of {pointers * options.cycles}")
    print(f"losses and parameters different from the control run: {different}")
    return 1 if changed or different else 0


if __name__ == "__main__":
    sys.exit(main())
