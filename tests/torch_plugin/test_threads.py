# SPDX-License-Identifier: Apache-2.0
"""Threads and the garbage collector: every tensor in the right shard, no deadlock, no lost byte (FR-G2, FR-G3, FR-G4)."""
import faulthandler
import gc
import random
import threading
import time
import weakref

import pytest
import stillwake as sw
import torch
from stillwake import adopting, shards

SECONDS = 2.0


@pytest.fixture(autouse=True)
def nothing_hangs():
    """Tells where every thread stands, and ends the process, when a test takes 60 s."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def eager_collector():
    """The collector runs at every chance there is, so also in the middle of the package's own calls."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


def run_all(bodies):
    """Runs each body in a thread, waits for all, and raises the first error that one raised."""
    errors = []

    def run(body):
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Ring:
    """A tensor that only the collector can free, with a finalizer that calls the package."""

    finalized = 0

    def __init__(self, tensor, finish=lambda: None):
        self.tensor, self.finish, self.ring = tensor, finish, self

    def __del__(self):
        self.finish()
        Ring.finalized += 1


def test_eight_threads_allocate_and_drop_while_others_sleep_and_wake(make_shard):
    """FR-G3: threads inside pools, nested ones too; every tensor is in its shard with its own bytes."""
    pools = [make_shard("pool") for _ in range(3)]
    sleepers = [make_shard("sleeper") for _ in range(2)]
    held = [torch.full((50000,), float(value)) for value in (1, 2)]
    for tensor, shard in zip(held, sleepers):
        sw.adopt([tensor], shard)
    addresses = [tensor.data_ptr() for tensor in held]
    end = time.monotonic() + SECONDS
    made = [0] * 8

    def allocate(number):
        choose = random.Random(number)
        kept = []
        while time.monotonic() < end:
            outer, inner = choose.sample(pools, 2)
            size = choose.choice([1, 100, 5000, 300000])
            with outer.pool():
                kept.append((torch.full((size,), float(number)), outer))
                with inner.pool():
                    kept.append((torch.full((size,), float(number)), inner))
                kept.append((torch.full((size,), float(number)), outer))
            kept.append((torch.full((size,), float(number)), None))
            made[number] += 4
            for tensor, shard in kept[-4:]:
                assert sw.shard_of(tensor) is shard
            while len(kept) > 20:
                tensor, _ = kept.pop(choose.randrange(len(kept)))
                assert tensor.eq(number).all()
        assert all(tensor.eq(number).all() for tensor, _ in kept)

    cycles = 0

    def cycle():
        nonlocal cycles
        while time.monotonic() < end or cycles == 0:
            sw.sleep(*sleepers)
            assert [shard.state for shard in sleepers] == ["asleep"] * 2
            sw.wake(*sleepers)
            assert held[0].eq(1).all() and held[1].eq(2).all()
            cycles += 1

    run_all([cycle] + [lambda number=number: allocate(number) for number in range(8)])
    assert cycles > 0 and all(made)
    assert [tensor.data_ptr() for tensor in held] == addresses
    gc.collect()
    assert [shard.stats().blocks for shard in pools] == [0, 0, 0], "what was dropped was given back"


def test_tensors_of_a_shard_are_dropped_by_other_threads_while_it_sleeps_and_wakes(shard):
    """FR-B3: frees in every state of a transition; the rest comes back exact."""
    with shard.pool():
        kept = [torch.full((3000,), float(value)) for value in range(20)]
        dropped = [torch.ones(size) for size in (10, 3000, 200000) for _ in range(100)]
    count = len(dropped)
    start = threading.Barrier(5)

    def drop():
        start.wait()
        while True:
            try:
                dropped.pop()
            except IndexError:
                return
            time.sleep(0.0005)

    def cycle():
        start.wait()
        for _ in range(15):
            sw.sleep(shard)
            sw.wake(shard)

    run_all([cycle, drop, drop, drop, drop])
    assert count and not dropped
    assert all(tensor.eq(value).all() for value, tensor in enumerate(kept))
    assert shard.stats().blocks == len(kept)


def test_one_thread_reads_figures_while_another_allocates(shard):
    """FR-G4: nothing on the allocation path waits for whoever reads figures or looks a tensor up."""
    end = time.monotonic() + SECONDS
    read, made = 0, 0

    def snapshot():
        nonlocal read
        while time.monotonic() < end:
            assert shard.stats().mapped >= 0 and sw.stats(shard) and shard.state
            read += 1

    def allocate():
        nonlocal made
        with shard.pool():
            while time.monotonic() < end:
                assert sw.is_awake(torch.ones(1000))
                made += 1

    run_all([snapshot, allocate])
    assert read > 100 and made > 100


def test_two_threads_in_transitions_of_one_shard_are_told_busy_or_take_turns(shard):
    tensor = torch.arange(100000.0)
    sw.adopt([tensor], shard)
    expected = tensor.clone()
    done, busy = [0] * 4, [0] * 4

    def turn(number):
        for _ in range(40):
            try:
                (sw.sleep if number % 2 else sw.wake)(shard)
                done[number] += 1
            except sw.Busy as error:
                assert shard.name in str(error)
                busy[number] += 1

    run_all([lambda number=number: turn(number) for number in range(4)])
    assert all(sum(counts) == 40 for counts in zip(done, busy))
    assert shard.state in ("awake", "asleep")
    sw.sleep(shard)
    with pytest.raises(RuntimeError, match="asleep"):
        tensor.sum()
    sw.wake(shard)
    assert tensor.equal(expected)


def test_the_guard_is_up_whenever_the_memory_is_gone(shard):
    """FR-G5: readers beside two threads that put the same shard to sleep get the right bytes or the guard's text."""
    tensor = torch.ones(2000)
    sw.adopt([tensor], shard)
    stop = threading.Event()
    raised = 0

    def sleep_and_fail():
        while not stop.is_set():
            try:
                sw.sleep(shard, timeout=-1)
            except (sw.InvalidArgument, sw.Busy):
                pass

    def cycle():
        nonlocal raised
        try:
            for _ in range(40):
                try:
                    sw.sleep(shard)
                except sw.Busy:
                    continue
                with pytest.raises(RuntimeError, match="asleep"):
                    tensor.sum()
                raised += 1
                sw.wake(shard)
        finally:
            stop.set()

    run_all([cycle, sleep_and_fail])
    assert raised > 0
    sw.wake(shard)
    assert tensor.sum() == 2000


def test_a_call_of_ours_gives_the_gil_up_while_it_waits(shard):
    """Python goes on in other threads while 64 MiB are copied."""
    with shard.pool():
        tensor = torch.ones(16 << 20)
    ticks, slept = [], threading.Event()

    def sleep():
        try:
            sw.sleep(shard)
        finally:
            slept.set()

    def count():
        while not slept.is_set():
            ticks.append(time.monotonic())

    run_all([sleep, count])
    assert len(ticks) > 10
    sw.wake(shard)
    assert tensor.eq(1).all()


def test_a_thread_that_keeps_the_gil_busy_stops_no_transition(shard):
    tensor = torch.ones(1000)
    sw.adopt([tensor], shard)
    stop = threading.Event()

    def burn():
        while not stop.is_set():
            sum(range(20000))

    def cycle():
        try:
            for _ in range(10):
                sw.sleep(shard)
                sw.host_view(tensor).sum()
                sw.wake(shard)
        finally:
            stop.set()

    run_all([burn, cycle])
    assert tensor.sum() == 1000


def test_the_collector_frees_tensors_in_the_middle_of_our_calls(make_shard, eager_collector):
    """FR-G2: reference cycles that hold tensors of a shard die inside adopt, audit, sleep, host_view and wake."""
    shard, other = make_shard(), make_shard()
    model = torch.nn.Sequential(*[torch.nn.Linear(20, 20) for _ in range(5)])
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    sw.adopt(model, shard)
    Ring.finalized = 0
    for _ in range(10):
        for place in (shard, other):
            with place.pool():
                for _ in range(5):
                    Ring(torch.ones(1000))
        Ring(list(model.parameters())[0].detach())
        sw.adopt([torch.ones(10)], other)
        assert sw.audit(model) == []
        sw.sleep(shard, other)
        assert all(view.equal(value) for view, value in zip(sw.host_view(model).values(), expected))
        sw.wake(shard, other)
    gc.collect()
    assert Ring.finalized == 110
    assert all(parameter.equal(value) for parameter, value in zip(model.parameters(), expected))
    assert (shard.stats().blocks, other.stats().blocks) == (10, 0)


def test_finalizers_that_call_the_package_run_in_the_middle_of_its_calls(make_shard, eager_collector):
    """FR-G2: a finalizer may ask, make shards and adopt, whichever of our calls the collector came in."""
    shard = make_shard()
    tensor = torch.ones(10)
    sw.adopt([tensor], shard)
    asked = []

    def ask():
        asked.append((sw.shard_of(tensor) is shard, sw.shard("of finalizers").state, len(sw.stats())))
        sw.adopt(torch.nn.Linear(2, 2), shard)

    def busy(number):
        for at in range(30):
            Ring(torch.ones(4), ask)
            sw.shard(f"beside finalizers {number}", addresses=2 << 20)
            sw.adopt(torch.nn.Linear(2, 2), shard)
            sw.stats()
            sw.audit({"tensor": tensor})

    run_all([lambda number=number: busy(number) for number in range(2)])
    gc.collect()
    assert len(asked) == 60 and all(right and state == "awake" for right, state, _ in asked)
    assert tensor.sum() == 10


def test_a_finalizer_may_ask_for_shards_while_one_is_being_made(monkeypatch, shard):
    """FR-G2: the collector comes just where the package holds its own lock; nobody waits for himself."""
    tensor, asked = torch.ones(10), []
    sw.adopt([tensor], shard)

    class Collecting(sw.Shard):
        def __init__(self, *arguments):
            gc.collect()
            super().__init__(*arguments)

    monkeypatch.setattr(shards, "Shard", Collecting)
    gc.disable()
    try:
        Ring(torch.ones(4), lambda: asked.append((sw.shard_of(tensor), sw.shard("asked for by a finalizer"))))
        made = sw.shard("made meanwhile")
    finally:
        gc.enable()
    assert asked == [(shard, sw.shard("asked for by a finalizer"))]
    assert made is sw.shard("made meanwhile")


def test_what_a_finalizer_adopts_while_another_is_adopted_is_followed_too(monkeypatch, shard):
    """FR-G2: both modules are audited by the next sleep."""
    late = torch.nn.Linear(2, 2)
    plain = weakref.ref

    def collecting(*arguments):
        gc.collect()
        return plain(*arguments)

    monkeypatch.setattr(adopting.weakref, "ref", collecting)
    gc.disable()
    try:
        Ring(torch.ones(4), lambda: sw.adopt(late, shard))
        model = torch.nn.Linear(3, 3)
        sw.adopt(model, shard)
    finally:
        gc.enable()
        monkeypatch.undo()
    late.weight.data, model.weight.data = torch.ones(2, 2), torch.ones(3, 3)
    with pytest.raises(sw.Stray) as raised:
        sw.sleep(shard)
    assert sorted(raised.value.strays) == [("weight", 16), ("weight", 36)]


def test_shards_are_made_by_many_threads_at_once_and_only_once():
    """FR-G3: asking for one name from eight threads makes one shard."""
    start, got = threading.Barrier(8), []

    def ask():
        start.wait()
        for at in range(10):
            got.append((at, sw.shard(f"from eight threads {at}", addresses=2 << 20)))

    run_all([ask] * 8)
    assert len(got) == 80 and len({id(shard) for _, shard in got}) == 10
    assert all(shard.name.endswith(f" {at}") for at, shard in got)
    for _, shard in got[:10]:
        shard.close()


def test_adopting_into_a_shard_that_sleeps_and_wakes_is_refused_or_whole(shard):
    """A storage is never moved in while a transition of the shard is under way."""
    stop, taken = threading.Event(), []

    def adopt():
        while not stop.is_set():
            tensor = torch.full((1000,), 5.0)
            try:
                sw.adopt([tensor], shard)
            except (sw.Busy, sw.Asleep):
                continue
            taken.append(tensor)
            if len(taken) > 200:
                del taken[:100]

    adopters = [threading.Thread(target=adopt) for _ in range(2)]
    for each in adopters:
        each.start()
    for _ in range(150):
        sw.sleep(shard)
        sw.wake(shard)
    stop.set()
    for each in adopters:
        each.join()
    assert shard.state == "awake"
    assert all(tensor.eq(5).all() for tensor in taken)
    assert taken, "nothing was ever adopted: the test shows nothing"
