# SPDX-License-Identifier: Apache-2.0
"""A frozen base with LoRA adapters sleeps between training steps: what is copied in which cycle, and why.

    python examples/frozen_base_lora.py [--width N] [--layers N] [--cycles N]

The base lies in a shard of policy frozen, the adapters and their optimizer in shards of policy preserve. The first
sleep copies everything. After it the base is only hashed (or, with --trust, not even looked at) and not copied; the
adapters are copied when they were trained.
"""
import argparse
import sys

import stillwake as sw
import torch
from torch import nn

RANK = 8


class LoraLinear(nn.Module):
    """A frozen linear layer and a trained product of two thin matrices beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, inputs):
        return self.base(inputs) + inputs @ self.down.T @ self.up.T


def build(width, layers, device):
    torch.manual_seed(0)
    parts = []
    for _ in range(layers):
        parts += [LoraLinear(nn.Linear(width, width)), nn.Tanh()]
    return nn.Sequential(*parts).to(device)


def split(model):
    """The base's parameters and the adapters', by name."""
    named = dict(model.named_parameters())
    return ({name: value for name, value in named.items() if not value.requires_grad},
            {name: value for name, value in named.items() if value.requires_grad})


def step(model, optimizer, number, width, device):
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(16, width, generator=generator).to(device)
    loss = (model(inputs) - inputs.flip(1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--cycles", type=int, default=4)
    parser.add_argument("--trust", action="store_true", help="the base is not even hashed after its first sleep")
    options = parser.parse_args()
    for name in ("width", "layers", "cycles"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: 1 or more are possible")

    print(sw.driver())
    device = "cpu" if sw.driver().kind == "emulated" else "cuda"
    control = build(options.width, options.layers, device)
    control_optimizer = torch.optim.AdamW(split(control)[1].values(), lr=1e-2)
    model = build(options.width, options.layers, device)
    frozen, adapters = split(model)
    optimizer = torch.optim.AdamW(adapters.values(), lr=1e-2)
    base = sw.shard("base", policy="frozen", trust=options.trust)
    lora, optim = sw.shard("lora"), sw.shard("optim")
    for tree, shard in ((frozen, base), (adapters, lora), (optimizer, optim)):
        print(sw.adopt(tree, shard))

    addresses = {name: value.data_ptr() for name, value in model.named_parameters()}
    changed = different = 0
    print("cycle  trained  base copied  lora copied  optim copied  base unchanged, bytes")
    for cycle in range(options.cycles):
        trained = cycle % 2 == 0  # every second cycle nothing is trained, and nothing at all is copied
        if trained:
            different += (step(model, optimizer, cycle, options.width, device)
                          != step(control, control_optimizer, cycle, options.width, device))
        slept = [sw.sleep(shard) for shard in (base, lora, optim)]
        sw.wake()
        changed += sum(value.data_ptr() != addresses[name] for name, value in model.named_parameters())
        print(f"{cycle:5}  {'yes' if trained else 'no':7}  {slept[0].copied:11}  {slept[1].copied:11}  "
              f"{slept[2].copied:12}  {slept[0].unchanged + slept[0].trusted}")
    different += sum(not torch.equal(mine, other) for mine, other in zip(model.parameters(), control.parameters()))
    print(f"pointers changed: {changed} of {len(addresses) * options.cycles}")
    print(f"losses and parameters different from the control run: {different}")
    return 1 if changed or different else 0


if __name__ == "__main__":
    sys.exit(main())
