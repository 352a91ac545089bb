# SPDX-License-Identifier: Apache-2.0
"""What PyTorch users wait for: a sharded module of many GiB asleep and awake, each figure beside its ceiling.

    python benchmarks/torch_job_benchmark.py [--gib 20] [--json FILE]
    torchrun --nproc-per-node 2 benchmarks/torch_job_benchmark.py       (a GPU a rank: the transitions of all at once)

The figures of time mean something on a GPU only. --emulated shows that it works without one (use --gib 0.1)."""
import argparse
import gc
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path

import stillwake as sw
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_import import measure as import_seconds

GIB = 1 << 30
CYCLES = 5
COUNT = 2000  # storages
SCRUB = 0.5  # seconds in which the driver clears what a sleep released; copies are slower meanwhile, whoever makes them


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
    """Rows of figure, measured, what it stands beside, and the aim. Each is told, and written, as soon as known."""

    def __init__(self, is_told, json_file):
        self.rows, self._is_told, self._json = [], is_told, json_file
        if is_told:
            print(f"{'figure':52}{'measured':>12}  {'unit':11}{'aim':>9}  {'reached':8}beside it", flush=True)

    def add(self, name, measured, unit, beside, aim, at_most=True):
        row = {"figure": name, "measured": measured, "unit": unit, "beside": beside, "aim": aim, "at_most": at_most,
               "reached": measured <= aim if at_most else measured >= aim}
        self.rows.append(row)
        if self._is_told:
            told = f"{'<=' if at_most else '>='} {aim:g}"
            print(f"{name:52}{measured:12.4g}  {unit:11}{told:>9}  {'yes' if row['reached'] else 'no':8}{beside}",
                  flush=True)
            if self._json:
                Path(self._json).write_text(json.dumps(self.rows, indent=1))


class Parts(nn.Module):
    """Parameters of equal size and nothing else."""

    def __init__(self, count, numel, device):
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.empty(numel // 256, 256, device=device)) for _ in range(count))


def sharded(count, total, device):
    """An FSDP2 module of `count` parameters, of `total` bytes on each rank."""
    numel = max(256, total // count // 4 // 256 * 256)
    module = Parts(count, numel * dist.get_world_size(), device)
    fully_shard(module, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what was whole before it was sharded
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
    dist.barrier()  # all ranks at once: they share the host's memory

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


def neighbour_works(device):
    """Somebody else has the device between a sleep and a wake: work in a little memory stands for him."""
    if device.type == "cuda":
        mine = torch.empty(1 << 20, device=device)
        until = time.perf_counter() + SCRUB
        while time.perf_counter() < until:
            mine.add_(1)
            torch.cuda.synchronize(device)


class LiveBytes:
    """The most bytes that lived at once in PyTorch's memory and in the shard, asked by a thread of its own."""

    def __init__(self, shard, device):
        self.most, self.samples, self._shard, self._device, self._ends = 0, 0, shard, device, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self._ends.is_set():
            inside = self._shard.stats().allocated
            outside = torch.cuda.memory_allocated(self._device)
            if inside == self._shard.stats().allocated:  # else a storage moved in between: counted twice or never
                self.most, self.samples = max(self.most, inside + outside), self.samples + 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        self._thread.join()


def adopting(table, total, device):
    """adopt of 2,000 storages: time, and live bytes above the end."""
    numel = max(256, total // COUNT // 4)

    def storages():
        return [torch.zeros(numel, device=device) for _ in range(COUNT)]

    tensors, shard = storages(), sw.shard("adopting")
    size = sum(tensor.nbytes for tensor in tensors)
    seconds = median_seconds(device, 1, lambda: sw.adopt(tensors, shard))
    table.add(f"adopt of {COUNT} storages", seconds, "s", f"{size} bytes, copied once on the device", 0.5)
    views = {str(number): tensor for number, tensor in enumerate(tensors)}
    table.add(f"audit of {COUNT} storages", 1e3 * median_seconds(device, CYCLES, lambda: sw.audit(views)), "ms", "", 5)
    sw.sleep(shard)
    pinned = shard.stats().host_pinned
    host_view = 1e3 * median_seconds(device, CYCLES, lambda: sw.host_view(views))
    table.add(f"host_view of {COUNT} tensors", host_view, "ms", f"{shard.stats().host_pinned - pinned} bytes more", 20)
    sw.wake(shard)
    del views, tensors
    shard.close()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        tensors, shard = storages(), sw.shard("adopting, watched")
        before = torch.cuda.memory_allocated(device) - size  # of others
        with LiveBytes(shard, device) as live:
            sw.adopt(tensors, shard)
        largest, end = tensors[0].nbytes, shard.stats().allocated + before
        table.add("live bytes above the end while adopting", max(0, live.most - end) / largest, "storages",
                  f"{live.samples} samples", 1.01)
        del tensors
        shard.close()
        torch.cuda.empty_cache()


def guarding(table, device):
    """What a sleep and a wake of 2,000 tiny storages take beside the core's own time: raising and ending the guard."""
    tensors, shard = [torch.zeros(16, device=device) for _ in range(COUNT)], sw.shard("guarded")
    sw.adopt(tensors, shard)
    slept, woken = [], []
    for _ in range(CYCLES):
        start = now(device)
        core = sw.sleep(shard).seconds
        middle = now(device)
        slept.append(middle - start - core)
        core = sw.wake(shard).seconds
        woken.append(now(device) - middle - core)
    there, back = (1e3 * statistics.median(each) for each in (slept, woken))
    table.add(f"guard of {COUNT} storages", max(there, back), "ms",
              f"around a sleep {there:.2f}, a wake {back:.2f} ms", 3)
    del tensors
    shard.close()


def transitions(table, count, total, device, ceiling, aim, with_by_hand):
    module = sharded(count, total, device)
    size = sum(parameter._local_tensor.nbytes for parameter in module.parameters())
    by_hand = moved_by_hand(module, device) if with_by_hand else None
    shard = sw.shard(f"params of {count}")
    job = sw.attach(module, params=shard)
    job.sleep()
    if count == COUNT:
        state = dict(module.named_parameters())
        table.add(f"host_view of {COUNT} DTensors",
                  1e3 * median_seconds(device, CYCLES, lambda: sw.host_view(state)), "ms", "", 60)
        del state
    job.wake()
    core_slept, core_woken, slept, woken, woken_at_once = [], [], [], [], []
    for cycle in range(2 * CYCLES):
        change(module, cycle + 1)
        now(device)
        dist.barrier()
        start = now(device)
        core_slept.append(job.sleep().report.seconds)
        slept.append(now(device) - start)
        at_once = cycle % 2 == 1  # every other wake, while the driver still scrubs
        if not at_once:
            neighbour_works(device)
        dist.barrier()
        start = now(device)
        core = job.wake().report.seconds
        (woken_at_once if at_once else woken).append(now(device) - start)
        if not at_once:
            core_woken.append(core)
    sleep, wake, at_once = (statistics.median(each) for each in (slept, woken, woken_at_once))
    there, back = (seconds * size / total for seconds in ceiling)
    beside = f"{sleep:.4f} + {wake:.4f} s, bus {there:.4f} + {back:.4f} s, core {statistics.median(core_slept):.4f} + "
    beside += f"{statistics.median(core_woken):.4f} s, woken at once {at_once:.4f} s"
    if by_hand is not None:
        beside += f", moved by hand {by_hand:.4f} s ({(there + back) / by_hand:.2f})"
    table.add(f"job.sleep + job.wake, {count} tensors", (there + back) / (sleep + wake), "of the bus", beside, aim,
              at_most=False)
    del job, module
    gc.collect()  # FSDP2 has cycles
    shard.close()


class CallsIntoThePackage:
    """Counts the calls of the package's functions, Python's and C++'s, that this thread makes."""

    def __init__(self):
        self.count, self._folder = 0, str(Path(sw.__file__).parent)

    def _see(self, frame, event, what):
        if event == "call":
            self.count += frame.f_code.co_filename.startswith(self._folder)
        elif event == "c_call":
            self.count += str(getattr(what, "__module__", "")).startswith("stillwake")

    def __enter__(self):
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


def step_while_awake(table, device):
    """A training step of an adopted model beside the same that was not: calls into package and driver, paired times."""
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
    job.sleep()
    job.wake()
    of_driver = sum(sw.driver().calls().values())
    with CallsIntoThePackage() as calls:
        for _ in range(20):
            step(*adopted)
    took = {id(plain): [], id(adopted): []}
    for number in range(200):  # each first as often as second
        for each in ((plain, adopted), (adopted, plain))[number % 2]:
            took[id(each)].append(median_seconds(device, 1, lambda each=each: step(*each)))
    of_driver = sum(sw.driver().calls().values()) - of_driver
    ratio = statistics.median(mine / its for mine, its in zip(took[id(adopted)], took[id(plain)]))
    mine, its = (1e3 * statistics.median(took[id(each)]) for each in (adopted, plain))
    table.add("calls into the package in 20 steps while awake", calls.count, "calls",
              f"{of_driver} driver calls; 200 paired steps: {mine:.3f} ms, not adopted {its:.3f} ms, "
              f"ratio {ratio:.3f}", 0)
    del job


def importing(table, runs):
    seconds = import_seconds(runs)
    table.add("import stillwake", 1e3 * seconds["import stillwake after it"], "ms",
              f"import torch takes {1e3 * seconds['import torch']:.0f} ms", 100)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=20, help="size of the module on each rank")
    parser.add_argument("--emulated", action="store_true", help="the emulated driver and CPU tensors")
    parser.add_argument("--by-hand", action="store_true", help="also move every parameter by hand to pinned memory")
    parser.add_argument("--json", help="write the rows there, too")
    options = parser.parse_args()
    if not 1e-3 <= options.gib <= 1024:
        parser.error(f"--gib {options.gib}: a size from 0.001 to 1024 is possible")
    if options.emulated:
        os.environ["STILLWAKE_DRIVER"] = "emulated"  # for the processes that measure the import, too
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu") if sw.driver().kind == "emulated" else torch.device(
        "cuda", int(os.environ.get("LOCAL_RANK", 0)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29577")
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", rank=rank, world_size=ranks)
    try:
        total = int(options.gib * GIB)
        ceiling = bus(device, total)
        if rank == 0:
            print(f"PyTorch {torch.__version__}, {sw.driver()}, {ranks} ranks\nraw pinned copies of {total} bytes: "
                  f"{ceiling[0]:.4f} s there, {ceiling[1]:.4f} s back")
        table = Table(rank == 0, options.json)
        transitions(table, 80, total, device, ceiling, 0.96, options.by_hand)
        transitions(table, COUNT, total, device, ceiling, 0.94, options.by_hand)
        if ranks == 1:
            adopting(table, total, device)
            guarding(table, device)
            step_while_awake(table, device)
            importing(table, 3)
    finally:
        gc.collect()  # FSDP2's modules are cycles that hold the group, whose threads must end before the interpreter
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
