# SPDX-License-Identifier: Apache-2.0
"""What needs a process of its own on a GPU: settings that are read once, Stillwake as the only allocator, the
interpreter's end in every state, a neighbour. All programs of this file run at the same time, to the end.

Suite gpu; the process ends with 77 where there is no GPU (conftest.py)."""
import os
import subprocess
import sys

import pytest
import stillwake as sw
import torch
from places import MIB, free_bytes, needs_gpu

pytestmark = needs_gpu

IN_A_POOL = """
import torch, stillwake as sw
{setting}
shard = sw.shard("one", device="cuda:0")
with shard.pool():
    tensor = torch.full((64 << 20,), 7, dtype=torch.uint8, device="cuda")
address = tensor.data_ptr()
report = sw.sleep(shard)
gained = report.freed
sw.wake(shard)
print(sw.shard_of(tensor) is shard, gained >= 64 << 20, tensor.data_ptr() == address, bool(tensor.eq(7).all()))
"""
RUN_TIME = {
    "at run time": 'torch.cuda.memory._set_allocator_settings("expandable_segments:True")',
    "at run time, of the accelerator": 'torch._C._accelerator_setAllocatorSettings("expandable_segments:True")',
    "after the first tensors": ('held = torch.ones(1 << 20, device="cuda"); '
                                'torch.cuda.memory._set_allocator_settings("expandable_segments:True")'),
}
ENVIRONMENTS = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_CUDA_ALLOC_CONF ": "max_split_size_mb:64,expandable_segments:True",
}
REFUSED = {
    "caching off": ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    "another backend": ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "", "cudaMallocAsync"),
    "caching turned off": ({}, "torch.cuda.init(); torch.cuda.memory.caching_allocator_enable(False)", "turned off"),
    "global mode": ({}, "sw.install()", "stillwake.use"),
}
A_JOB = """
import gc, sys, threading, time, torch, stillwake as sw
params, optim, cache = sw.shard("params"), sw.shard("optim"), sw.shard("cache", policy="discard")
with params.pool():
    model = torch.nn.Linear(1000, 1000).cuda()
with cache.pool():
    pooled = torch.ones(1 << 20, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
sw.adopt(optimizer, optim)
def step():
    model(torch.ones(4, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
step()
"""
ENDS = {
    "awake": ("", 0),
    "asleep": ("sw.sleep()", 0),
    "half asleep": ("sw.sleep(optim, cache)", 0),
    "after cycles": ("for _ in range(5): sw.sleep(); sw.wake(); step()", 0),
    "tensors dropped while asleep": (
        "sw.sleep(); del model, optimizer, pooled; gc.collect(); torch.cuda.empty_cache()", 0),
    "host views alive": ("sw.sleep(); view = sw.host_view(model); kept = view['weight'].numpy()", 0),
    "a graph in a shard, asleep": (
        "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph, pool=optim.mem_pool(for_graphs=True).id):\n"
        " out = pooled * 2\ngraph.replay(); sw.sleep()", 0),
    "inside a pool": ("block = cache.pool(); block.__enter__(); more = torch.ones(10, device='cuda')", 0),
    "a daemon thread inside a pool": (
        "def fill():\n with cache.pool():\n  kept = torch.ones(1000, device='cuda'); time.sleep(1000)\n"
        "threading.Thread(target=fill, daemon=True).start(); time.sleep(0.3); sw.sleep(params)", 0),
    "a daemon thread that sleeps and wakes": (
        "def turn():\n while True: sw.sleep(); sw.wake()\n"
        "threading.Thread(target=turn, daemon=True).start(); time.sleep(0.5)", 0),
    "sys.exit asleep": ("sw.sleep(); sys.exit(7)", 7),
    "a full device": (
        "try:\n with cache.pool(): torch.empty(1 << 44, device='cuda')\nexcept sw.OutOfMemory as e: kept = e", 0),
    "memory's history is recorded": (
        "torch.cuda.memory._record_memory_history(); step(); sw.sleep(); sw.wake(); step()", 0),
}
GLOBAL = """
import torch, stillwake as sw
sw.install()
big, small = sw.shard("big"), sw.shard("small")
with sw.use(big):
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.ones(8, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        addresses = [parameter.data_ptr() for parameter in model.parameters()]
        sw.sleep()
        sw.wake()
        assert addresses == [parameter.data_ptr() for parameter in model.parameters()]
    try:
        torch.empty(1 << 44, device="cuda")
    except torch.OutOfMemoryError:
        print("full")
outside = torch.ones(10, device="cuda")
with sw.use(small):
    inside = torch.ones(10, device="cuda")
try:
    with small.pool():
        pass
except sw.InvalidArgument as error:
    print("refused" if "stillwake.use" in str(error) else error)
print([sw.shard_of(tensor).name for tensor in (model[0].weight, outside, inside)])
sw.sleep()
sw.wake()
print(outside.sum().item() + inside.sum().item())
"""
NEIGHBOUR = """
import sys, torch
torch.ones(1, device="cuda")
print("ready", flush=True)
wanted = int(sys.stdin.readline())
tensor = torch.full((wanted,), 3, dtype=torch.uint8, device="cuda")
print("allocated", int(tensor[-1]), flush=True)
sys.stdin.read()  # holds it until it is told to end
"""


def programs():
    """Every program by name: its text and its environment."""
    for name, value in ENVIRONMENTS.items():
        yield f"setting {name}", IN_A_POOL.format(setting=""), {name.strip(): value}
    for name, setting in RUN_TIME.items():
        yield f"setting {name}", IN_A_POOL.format(setting=setting), {}
    for name, (environment, setting, _) in REFUSED.items():
        yield f"refused {name}", IN_A_POOL.format(setting=setting), environment
    for name, (end, _) in ENDS.items():
        yield f"end {name}", A_JOB + end, {}
    yield "global", GLOBAL, {}


@pytest.fixture(scope="module")
def ended():
    """How each program ended: sixteen run at a time, since each takes half a GiB of the device."""
    answers, waiting, running = {}, list(programs()), {}
    while waiting or running:
        while waiting and len(running) < 16:
            name, text, environment = waiting.pop(0)
            running[name] = subprocess.Popen([sys.executable, "-c", text], env={**os.environ, **environment},
                                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                             text=True)
        name = next(iter(running))
        process = running.pop(name)
        try:
            answers[name] = (*process.communicate(timeout=60), process.returncode)
        except subprocess.TimeoutExpired:
            process.kill()
            answers[name] = (*process.communicate(), "it hung for 60 s")
    return answers


@pytest.mark.parametrize("name", [*ENVIRONMENTS, *RUN_TIME])
def test_every_spelling_of_expandable_segments_works(name, ended):
    """FR-G1: never 0 bytes freed in silence."""
    output, errors, status = ended[f"setting {name}"]
    assert (output.strip().splitlines()[-1:], status) == (["True True True True"], 0), errors


@pytest.mark.parametrize("name", REFUSED)
def test_a_process_without_pools_is_told_so(name, ended):
    _, errors, status = ended[f"refused {name}"]
    assert status == 1 and "InvalidArgument" in errors and REFUSED[name][2] in errors.splitlines()[-1], errors


@pytest.mark.parametrize("name", ENDS)
def test_the_interpreter_ends_in_every_state(name, ended):
    """FR-G2"""
    _, errors, status = ended[f"end {name}"]
    assert status == ENDS[name][1] and "stillwake" not in errors and "Error" not in errors, (status, errors)


def test_stillwake_as_the_only_allocator(ended):
    output, errors, status = ended["global"]
    assert status == 0 and output.splitlines() == ["full", "refused", "['big', 'default', 'small']", "20.0"], errors


def test_a_neighbour_allocates_what_a_sleep_freed_as_soon_as_it_returns(make_shard):
    """FR-A4"""
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True)
    try:
        assert neighbour.stdout.readline() == "ready\n"
        torch.cuda.empty_cache()
        shard = make_shard(policy="discard")
        with shard.pool():
            tensor = torch.empty(free_bytes() - 2048 * MIB, dtype=torch.uint8, device="cuda")
        sw.sleep(shard)
        print(tensor.nbytes, file=neighbour.stdin, flush=True)
        assert neighbour.stdout.readline() == "allocated 3\n"
        with pytest.raises(sw.OutOfMemory):
            sw.wake(shard)
    finally:
        neighbour.stdin.close()
        neighbour.wait(60)
    sw.wake(shard, timeout=10)
    assert not tensor[::MIB].any()
    del tensor
    shard.close()
