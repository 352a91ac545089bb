# SPDX-License-Identifier: Apache-2.0
"""Interpreter exit in every state: the program's own exit status, and not a word on stderr (FR-G2)."""
import signal
import subprocess
import sys

import pytest

from programs import Ended, Programs

START = """
import gc, os, sys, threading, time
import stillwake as sw
import torch
params, optim = sw.shard("params"), sw.shard("optim")
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.AdamW(model.parameters())
sw.adopt([model, optimizer], params)
with optim.pool():
    pooled = torch.ones(1000)
def step():
    optimizer.zero_grad()
    model(torch.ones(2, 100)).sum().backward()
    optimizer.step()
step()
"""

#: What the program is doing when it ends, and its exit status.
PROGRAMS = {
    "awake": ("step()", 0),
    "asleep": ("sw.sleep(strays='report')", 0),
    "half asleep": ("sw.sleep(optim)", 0),
    "after ten cycles": ("for _ in range(10): sw.sleep(); sw.wake(); step()", 0),
    "tensors dropped while asleep": ("sw.sleep(); del model, optimizer, pooled; gc.collect()", 0),
    "the module's names dropped": ("sw.sleep(); del params, optim, sw", 0),
    "host views alive": ("sw.sleep(); view = sw.host_view(model); kept = view['weight'].numpy()", 0),
    "host views alive, awake again": ("sw.sleep(); view = sw.host_view(model, write=True); sw.wake()", 0),
    "inside a pool": ("scope = params.pool(); scope.__enter__(); inside = torch.ones(10)", 0),
    "a pool left by the collector": (
        "def inside():\n with params.pool():\n  yield torch.ones(10)\nrunning = inside(); next(running)", 0),
    "in an awake block": ("sw.sleep(); block = sw.awake(params); block.__enter__()", 0),
    "in a reference cycle": ("ring = [model]; ring.append(ring); sw.sleep(); del model", 0),
    "kept by a module global of torch": ("torch.kept = (model, optimizer, pooled); sw.sleep()", 0),
    "sys.exit": ("sw.sleep(); sys.exit(7)", 7),
    "sys.exit inside a pool": ("with params.pool():\n x = torch.ones(10)\n sys.exit(7)", 7),
    "SystemExit with tensors in the traceback": (
        "def deep(tensor):\n sw.sleep()\n raise SystemExit(3)\ndeep(torch.ones(10))", 3),
    "os._exit": ("sw.sleep(); os._exit(5)", 5),
    "atexit handlers that use it": (
        "import atexit\natexit.register(lambda: (sw.wake(), step(), sw.sleep()))\nsw.sleep()", 0),
    "finalizers that use it": (
        "import weakref\nweakref.finalize(model, lambda: sw.sleep())\n"
        "class Last:\n def __del__(self): sw.wake()\nlast = Last()", 0),
    "a daemon thread that sleeps and wakes": (
        "def turn():\n while True: sw.sleep(); sw.wake()\n"
        "threading.Thread(target=turn, daemon=True).start(); time.sleep(0.3)", 0),
    "a daemon thread that waits inside a pool": (
        "def fill():\n with optim.pool():\n  kept = torch.ones(1000); time.sleep(1000)\n"
        "threading.Thread(target=fill, daemon=True).start(); time.sleep(0.3)", 0),
    "a thread that ends later": (
        "def later():\n time.sleep(0.5); sw.sleep(); sw.wake(); sw.sleep()\nthreading.Thread(target=later).start()", 0),
    "a background prepare": ("sw.prepare(background=True)", 0),
    "an attached job asleep": ("job = sw.attach(model, optimizer, params=params, optim=params); job.sleep()", 0),
    "after errors": ("sw.sleep()\ntry: model(torch.ones(1, 100))\nexcept RuntimeError as error: kept = error", 0),
    "after a full device": (
        "try:\n with params.pool(): torch.empty(1 << 40)\nexcept sw.OutOfMemory as error: kept = error", 0),
    "closed shards": ("del pooled; optim.close()", 0),
}


@pytest.fixture(scope="module")
def run():
    programs = Programs()
    yield lambda program, start=START: programs.run(start + program + "\n")
    assert programs.close() == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_with_its_own_status_and_says_nothing(name, run):
    program, status = PROGRAMS[name]
    assert run(program) == Ended(status, "")


def test_the_import_alone_leaves_nothing_behind(run):
    assert run("import stillwake", start="") == Ended(0, "")


def test_an_exception_is_all_that_a_failing_program_tells(run):
    ended = run("sw.sleep(); raise ValueError('of the program')")
    assert ended.status == 1
    assert ended.stderr.startswith("Traceback") and ended.stderr.endswith("ValueError: of the program\n")
    assert "stillwake:" not in ended.stderr


def test_a_signal_ends_a_sleeping_program_as_any_other(run):
    assert run("import signal; sw.sleep(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)") == Ended(-15, "")


@pytest.mark.parametrize("use", ["sw.sleep(); model.weight.is_shared()",
                                 "sw.sleep(); view = sw.host_view(model.weight); sw.wake(); view.is_shared()"])
def test_what_pytorch_asks_outside_of_its_error_handling_ends_the_program_with_our_text(use, run):
    """As docs/pytorch/troubleshooting.md says. It raises once PyTorch's `is_shared` does: then that line goes."""
    ended = run("import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n" + use)
    assert ended.status == -signal.SIGABRT
    assert "terminate called after throwing" in ended.stderr and "stillwake: shard 'params'" in ended.stderr


FORKED = """
import multiprocessing
def child(queue, asleep):
    import gc
    outside = torch.ones(10).sum().item()
    try:
        model.weight.sum()
        raise SystemExit("the memory of a forked child's parent was read")
    except RuntimeError as error:
        assert "was forked from" in str(error), error
    told = []
    for call in (sw.sleep, sw.wake, lambda: sw.adopt(model, params), lambda: sw.awake(params).__enter__(),
                 lambda: sw.host_view(model), params.pool().__enter__, params.trim, params.close, sw.driver):
        try:
            call()
            told.append("no error")
        except sw.Lost as error:
            told.append("lost")
    try:
        model.weight.sum()
        raise SystemExit("the memory of a forked child's parent was read after its calls")
    except RuntimeError as error:
        assert "was forked from" in str(error), error  # still: the calls put no text of theirs in its place
    drop = globals().pop("pooled")
    del drop
    gc.collect()
    queue.put((outside, set(told)))
def try_it(asleep):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, asleep))
    process.start()
    assert queue.get(timeout=30) == (10.0, {"lost"})
    process.join()
    assert process.exitcode == 0, process.exitcode
"""


@pytest.mark.parametrize("state", ["awake", "asleep"])
def test_a_forked_child_ends_well_and_the_parent_goes_on(state, run):
    asleep = state == "asleep"
    ended = run(FORKED + f"before = model.weight.clone()\n{'sw.sleep()' if asleep else ''}\ntry_it({asleep})\n"
               "sw.wake(); assert model.weight.equal(before) and pooled.sum() == 1000; step(); sw.sleep()")
    assert ended == Ended(0, "")


@pytest.mark.parametrize("call", ["sw.sleep()", "sw.wake()", "sw.adopt(torch.ones(3), params)", "params.close()",
                                  "params.pool().__enter__()", "sw.awake(params).__enter__()", "sw.shard('new')"])
def test_a_child_forked_in_the_middle_of_a_call_of_another_thread_is_lost_and_waits_for_nobody(call, run):
    ended = run(f"""
from stillwake import shards, transitions
large = torch.ones(32 << 20)
before = params.stats().allocated
adopting = threading.Thread(target=lambda: sw.adopt(large, params))
holding = threading.Event()
def hold():
    with transitions._scopes._changed, shards._making:
        holding.set()
        time.sleep(1)
threading.Thread(target=hold).start()
holding.wait()
adopting.start()
while params.stats().allocated == before: pass  # from here on it copies, alone with the shard
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    try:
        {call}
    except sw.Lost:
        os._exit(7)
    os._exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
adopting.join()
assert large.sum() == 32 << 20
""")
    assert ended == Ended(0, "")


def test_a_forked_child_that_uses_os_fork_alone_ends_well(run):
    ended = run("pid = os.fork()\nif pid == 0: sys.exit(4)\n"
               "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4\nsw.sleep(); sw.wake(); step()")
    assert ended == Ended(0, "")


def test_the_workers_of_a_data_loader_end_well(run):
    ended = run("""
data = torch.utils.data.TensorDataset(torch.arange(40.0))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
assert sum(batch[0].sum() for batch in loader) == 780
sw.sleep()
assert sum(batch[0].sum() for batch in loader) == 780
sw.wake(); step()
""")
    assert ended == Ended(0, "")


def test_a_spawned_child_has_a_session_of_its_own(tmp_path):
    script = tmp_path / "spawning.py"
    script.write_text("""
import multiprocessing

def child(queue):
    import stillwake as sw
    import torch
    with sw.shard("params").pool():
        tensor = torch.full((100,), 2.0)
    sw.sleep()
    sw.wake()
    queue.put(float(tensor.sum()))

if __name__ == "__main__":
    import stillwake as sw
    import torch
    with sw.shard("params").pool():
        tensor = torch.ones(100)
    sw.sleep()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == 200
    process.join()
    assert process.exitcode == 0
    sw.wake()
    assert tensor.sum() == 100
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
