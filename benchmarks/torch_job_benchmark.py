# SPDX-License-Identifier: Apache-2.0
"""What PyTorch users wait for: a sharded module of many GiB asleep and awake, each figure beside its ceiling of this run.

    python benchmarks/torch_job_benchmark.py [--gib 20] [--json FILE]        (one process, one device, either driver)

The figures of time mean something on a GPU only; on the emulated driver the program shows that it works (--gib 0.1)."""
import argparse
import gc
import json
import os
import statistics
import sys
import time

import stillwake as sw
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

GIB = 1 << 30
CYCLES = 5


def now(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def median_seconds(device, count, work):
    took = []
    for _ in range(count):
        start = now(device)
        work()
        took.append(now(device) - start)
    return statistics.median(took)


class Table:
    """Rows of figure, measured, what it stands beside, and the aim."""

    def __init__(self):
        self.rows = []

    def add(self, name, measured, unit, beside, aim, at_most=True):
        self.rows.append({"figure": name, "measured": measured, "unit": unit, "beside": beside, "aim": aim,
                          "at_most": at_most, "reached": measured <= aim if at_most else measured >= aim})

    def show(self):
        print(f"{'figure':52}{'measured':>12}  {'unit':11}{'aim':>9}  {'reached':8}beside it")
        for row in self.rows:
            aim = f"{'<=' if row['at_most'] else '>='} {row['aim']:g}"
            print(f"{row['figure']:52}{row['measured']:12.4g}  {row['unit']:11}{aim:>9}  "
                  f"{'yes' if row['reached'] else 'no':8}{row['beside']}")


class Parts(nn.Module):
    """Parameters of equal size and nothing else."""

    def __init__(self, count, numel, device):
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.empty(numel // 256, 256, device=device)) for _ in range(count))


def sharded(count, total, device):
    """An FSDP2 module of `count` parameters of `total` bytes together, on this rank alone."""
    module = Parts(count, max(256, total // count // 4 // 256 * 256), device)
    fully_shard(module, mesh=init_device_mesh(device.type, (1,)))
    change(module, 0)
    return module


@torch.no_grad()
def change(module, value):
    """Writes every page."""
    for parameter in module.parameters():
        parameter._local_tensor.fill_(value)


def bus(device, total):
    """Seconds for `total` bytes to the host and back, by raw copies of 256 MiB over pinned memory."""
    piece = min(256 << 20, total)
    inside = torch.empty(piece, dtype=torch.uint8, device=device)
    outside = torch.empty(piece, dtype=torch.uint8, pin_memory=device.type == "cuda")
    copies = max(1, total // piece)

    def many(to, source):
        for _ in range(copies):
            to.copy_(source, non_blocking=True)

    scale = total / (copies * piece)
    return (scale * median_seconds(device, CYCLES, lambda: many(outside, inside)),
            scale * median_seconds(device, CYCLES, lambda: many(inside, outside)))


def moved_by_hand(module, device):
    """Seconds to move every parameter to pinned memory that is kept, and back: what programs do without Stillwake."""
    locals_ = [parameter._local_tensor for parameter in module.parameters()]
    kept = [torch.empty_like(each, device="cpu", pin_memory=device.type == "cuda") for each in locals_]

    def there_and_back():
        for mine, host in zip(locals_, kept):
            host.copy_(mine, non_blocking=True)
        now(device)
        for mine, host in zip(locals_, kept):
            mine.copy_(host, non_blocking=True)

    return median_seconds(device, 3, there_and_back)


def adopting(table, total, device):
    """adopt of 2,000 storages: time, and live bytes above the end."""
    count = 2000
    numel = max(256, total // count // 4)
    tensors = [torch.zeros(numel, device=device) for _ in range(count)]
    shard = sw.shard("adopting")
    free_before = sw.driver().memory(device.index or 0)[0]
    seconds = median_seconds(device, 1, lambda: sw.adopt(tensors, shard))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    above = free_before - sw.driver().memory(device.index or 0)[0]
    table.add(f"adopt of {count} storages", seconds, "s", f"{above / 2**20:.0f} MiB more than before in the end", 0.5)
    views = {str(number): tensor for number, tensor in enumerate(tensors)}
    table.add("audit of 2,000 storages", 1e3 * median_seconds(device, CYCLES, lambda: sw.audit(views)), "ms", "", 5)
    sw.sleep(shard)
    table.add("host_view of 2,000 tensors", 1e3 * median_seconds(device, CYCLES, lambda: sw.host_view(views)), "ms", "", 20)
    sw.wake(shard)
    del views, tensors
    shard.close()


def transitions(table, count, total, device, ceiling, aim):
    module = sharded(count, total, device)
    size = sum(parameter._local_tensor.nbytes for parameter in module.parameters())
    by_hand = moved_by_hand(module, device)
    shard = sw.shard(f"params of {count}")
    job = sw.attach(module, params=shard)
    job.sleep()
    if count == 2000:
        state = dict(module.named_parameters())
        table.add("host_view of 2,000 DTensors",
                  1e3 * median_seconds(device, CYCLES, lambda: sw.host_view(state)), "ms", "", 60)
        del state
    job.wake()
    slept, woken, quick = [], [], []
    for cycle in range(CYCLES):
        change(module, cycle + 1)
        start = now(device)
        slept.append(job.sleep().report.seconds)
        middle = now(device)
        woken.append(job.wake().report.seconds)
        quick.append((middle - start, now(device) - middle))
    sleep, wake = (statistics.median(each) for each in zip(*quick))
    there, back = (seconds * size / total for seconds in ceiling)
    table.add(f"job.sleep + job.wake, {count} tensors", (there + back) / (sleep + wake), "of the bus",
              f"{sleep:.4f} + {wake:.4f} s, bus {there:.4f} + {back:.4f} s, moved by hand {by_hand:.4f} s "
              f"({(there + back) / by_hand:.2f})", aim, at_most=False)
    if count == 2000:
        table.add("guard and Python around a sleep of 2,000 storages",
                  1e3 * (sleep - statistics.median(slept)), "ms", f"the core's sleep {statistics.median(slept):.4f} s", 3)
    del job, module
    gc.collect()  # FSDP2 has cycles
    shard.close()


def step_while_awake(table, device):
    """A training step of an adopted model beside the same that was not: calls into the driver, and paired times."""
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(device)
        return model, torch.optim.AdamW(model.parameters())

    def step(model, optimizer):
        model(torch.ones(8, 512, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    plain, adopted = build(), build()
    job = sw.attach(*adopted, params="step params", optim="step optim")
    for each in (plain, adopted):
        step(*each)
    calls = sum(sw.driver().calls().values())
    ratios = []
    for _ in range(200):
        pair = [median_seconds(device, 1, lambda each=each: step(*each)) for each in (plain, adopted)]
        ratios.append(pair[1] / pair[0])
    calls = sum(sw.driver().calls().values()) - calls
    table.add("driver calls of 200 steps while awake", calls, "calls",
              f"paired step times: median ratio {statistics.median(ratios):.3f}", 0)
    del job


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=20, help="size of the module")
    parser.add_argument("--json", help="write the rows there, too")
    options = parser.parse_args()
    if not options.gib > 0:
        parser.error(f"--gib {options.gib}: a size above 0")
    print(f"PyTorch {torch.__version__}, {sw.driver()}")
    device = torch.device("cpu") if sw.driver().kind == "emulated" else torch.device("cuda", 0)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29577")
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", rank=0, world_size=1)
    try:
        total = int(options.gib * GIB)
        table = Table()
        ceiling = bus(device, total)
        print(f"raw pinned copies of {total} bytes: {ceiling[0]:.4f} s there, {ceiling[1]:.4f} s back")
        transitions(table, 80, total, device, ceiling, 0.96)
        transitions(table, 2000, total, device, ceiling, 0.94)
        adopting(table, total, device)
        step_while_awake(table, device)
        table.show()
        if options.json:
            with open(options.json, "w") as file:
                json.dump(table.rows, file, indent=1)
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
