# SPDX-License-Identifier: Apache-2.0
"""A small transformer trained by FSDP2 on two ranks sleeps between steps, beside a control run that never does.

    torchrun --nproc-per-node 2 examples/fsdp2_sleep.py [--steps N] [--text FILE]

While it sleeps, the EMA is updated and a checkpoint is written from the host copy. At the end: pointers changed 0 of N,
and losses, parameters, optimizer state and EMA equal to the control run's, bit for bit.
"""
import argparse
import copy
import gc
import os
import sys
import tempfile
from pathlib import Path

import stillwake as sw
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 128, 4, 2, 64, 4
EMA_DECAY = 0.95


class Transformer(nn.Module):
    """Predicts the next byte of a text. The embedding and the output share their weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, 256, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.output(self.norm(hidden))


class Training:
    """A model, its optimizer and an exponential moving average of its parameters, on one rank of two."""

    def __init__(self, device, text):
        torch.manual_seed(0)
        self.device, self.text = device, text
        self.model = Transformer().to(device)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.ema = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def step(self, number):
        generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        starts = torch.randint(len(self.text) - CONTEXT - 1, (BATCH,), generator=generator)
        rows = torch.stack([self.text[start:start + CONTEXT + 1] for start in starts]).to(self.device)
        logits = self.model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def state(self):
        """Everything that must be equal in the end, as local tensors."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"ema.{name}": value for name, value in self.ema.items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{key}": value for key, value in state.items()}
        return {name: getattr(value, "_local_tensor", value) for name, value in tensors.items()}


def update_ema(ema, parameters):
    for name, average in ema.items():
        average.lerp_(parameters[name], 1 - EMA_DECAY)


def control_run(training, steps):
    """Never sleeps. The EMA is computed by the CPU here, too, because a GPU rounds the same sum in another way."""
    losses = []
    for number in range(steps):
        losses.append(training.step(number))
        parameters = training.model.state_dict()
        for name, average in training.ema.items():
            mine, current = average._local_tensor, parameters[name]._local_tensor
            mine.copy_(mine.cpu().lerp_(current.cpu(), 1 - EMA_DECAY))
    return losses


def sleeping_run(training, steps, folder):
    """The same, asleep between steps; the EMA is updated, and a checkpoint written, from the host copies."""
    job = sw.attach(training.model, training.optimizer, ema=training.ema)
    losses, addresses, changed = [], {}, 0
    for number in range(steps):
        losses.append(training.step(number))
        slept = job.sleep()
        parameters = sw.host_view(training.model.state_dict())
        update_ema(sw.host_view(training.ema, write=True), parameters)
        if number == steps - 1:
            dcp.save({"model": parameters}, checkpoint_id=folder)
        woken = job.wake()
        found = {name: tensor.data_ptr() for name, tensor in training.state().items() if tensor.numel()}
        changed += sum(addresses.setdefault(name, address) != address for name, address in found.items())
        if number == 1:
            say(slept)
            say(woken)
    return losses, changed, len(addresses)


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def total(count, group):
    """The sum over all ranks."""
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, count, group=group)
    return sum(told)


def run(device, text, steps):
    """Both runs, and what they are compared by; the exit status."""
    say(sw.driver())
    control = Training(device, text)
    wanted = control_run(control, steps)
    training = Training(device, text)
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        losses, changed, pointers = sleeping_run(training, steps, folder[0])
        saved = {"model": copy.deepcopy(training.model.state_dict())}
        dcp.load(saved, checkpoint_id=folder[0])
        dist.barrier()
    mine, other = training.state(), control.state()
    mine |= {f"checkpoint.{name}": value._local_tensor for name, value in saved["model"].items()}
    other |= {f"checkpoint.{name}": value._local_tensor for name, value in training.model.state_dict().items()}
    different = sum(not torch.equal(value, other[name]) for name, value in mine.items())
    different_losses = sum(a != b for a, b in zip(losses, wanted))
    changed, pointers, different, compared, different_losses = (
        total(count, None) for count in (changed, pointers, different, len(mine), different_losses))
    say("step   loss        control run")
    for number, (loss, reference) in enumerate(zip(losses, wanted)):
        say(f"{number:4}   {loss:.8f}  {reference:.8f}")
    say(f"pointers changed: {changed} of {pointers}")
    say(f"tensors different from the control run: {different} of {compared} "
        "(parameters, optimizer state, EMA, checkpoint)")
    say(f"losses different from the control run: {different_losses} of {steps * dist.get_world_size()}")
    return 1 if changed or different or different_losses else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--text", type=Path, default=Path(__file__).resolve().parent.parent / "docs/concepts.md",
                        help="what is learned (default: a page of this project's documentation)")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: 1 or more are possible")
    try:
        text = torch.tensor(list(options.text.read_bytes()))
    except OSError as error:
        parser.error(f"--text {options.text}: {error.strerror}")
    if len(text) <= CONTEXT + 1:
        parser.error(f"--text {options.text}: {len(text)} bytes, at least {CONTEXT + 2} are needed")

    emulated = sw.driver().kind == "emulated"
    if emulated:
        device = torch.device("cpu")
    else:
        # Two runs are to be equal bit for bit, so each kernel must always add in the same order.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if emulated else "cpu:gloo,cuda:nccl")
    try:
        return run(device, text, options.steps)
    finally:
        # FSDP2's modules are cycles that hold the group. Its threads must end before the interpreter does.
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
