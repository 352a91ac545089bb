# SPDX-License-Identifier: Apache-2.0
"""Threads: every tensor in the right shard, no deadlock, no lost byte (FR-G3, FR-G4, FR-G5)."""
import gc
import random
import threading
import time

import pytest
import stillwake as sw
import torch
from side_by_side import beside, run_all
from stillwake import adopting

SECONDS = 2.0
pytestmark = pytest.mark.usefixtures("nothing_hangs")


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
    raised = 0

    def sleep_and_fail(stop):
        while not stop.is_set():
            try:
                sw.sleep(shard, timeout=-1)
            except (sw.InvalidArgument, sw.Busy):
                pass

    with beside(sleep_and_fail):
        for _ in range(40):
            try:
                sw.sleep(shard)
            except sw.Busy:
                continue
            with pytest.raises(RuntimeError, match="asleep"):
                tensor.sum()
            raised += 1
            sw.wake(shard)
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

    def burn(stop):
        while not stop.is_set():
            sum(range(20000))

    with beside(burn):
        for _ in range(10):
            sw.sleep(shard)
            sw.host_view(tensor).sum()
            sw.wake(shard)
    assert tensor.sum() == 1000


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
    taken = []

    def adopt(stop):
        while not stop.is_set():
            tensor = torch.full((1000,), 5.0)
            try:
                sw.adopt([tensor], shard)
            except (sw.Busy, sw.Asleep):
                continue
            taken.append(tensor)
            if len(taken) > 200:
                del taken[:100]

    with beside(adopt, adopt):
        for _ in range(150):
            sw.sleep(shard)
            sw.wake(shard)
    assert shard.state == "awake"
    assert all(tensor.eq(5).all() for tensor in taken)
    assert taken, "nothing was ever adopted: the test shows nothing"


def test_what_a_sleeping_tensor_tells_is_whole_while_others_wake_it(shard):
    """The text of the guard is read by one thread while another thread lowers the guard."""
    tensor = torch.ones(100)
    sw.adopt([tensor], shard)
    told, faults = set(), []

    def look(stop):
        while not stop.is_set():
            try:
                tensor.data_ptr()
            except RuntimeError as error:
                told.add(str(error))
            except Exception as error:  # UnicodeDecodeError for memory that was freed
                faults.append(error)

    with beside(look, look, look):
        for _ in range(100):
            sw.sleep(shard)
            sw.wake(shard)
    assert faults == [] and len(told) == 1 and told.pop().startswith(f"stillwake: shard '{shard.name}' is asleep: its ")


@pytest.mark.parametrize("until", ["sealed", "asleep"])
def test_strays_met_by_another_threads_sleep_are_told_and_left_to_the_next_one(until, shard, monkeypatch):
    """As what an optimizer's step finds then: the core alone answers what becomes of the second sleep."""
    model = torch.nn.Linear(3, 3, bias=False)
    large = torch.ones(16 << 20)
    sw.adopt([model, [large]], shard)
    model.weight.data = torch.full((3, 3), 2.0)
    sleeper = threading.Thread(target=sw.sleep, args=(shard,), kwargs={"strays": "report"})
    look = adopting.strays_of

    def looking(trees):
        found = look(trees)
        monkeypatch.undo()
        sleeper.start()
        while shard.state == "awake" or (shard.state != "asleep" and until == "asleep"):
            time.sleep(0)
        return found

    monkeypatch.setattr(adopting, "strays_of", looking)
    told = rf"1 tensors \(weight\) stay outside of shard '{shard.name}' until its next sleep"
    with pytest.warns(UserWarning, match=told):
        try:
            assert sw.sleep(shard, strays="adopt").is_no_op
        except sw.Busy as error:
            assert shard.name in str(error) and until != "asleep"
    sleeper.join()
    assert model.weight.eq(2).all() and sw.shard_of(model.weight) is None
    sw.wake(shard)
    sw.sleep(shard, strays="adopt")
    assert sw.shard_of(model.weight) is shard
    sw.wake(shard)
    assert model.weight.eq(2).all() and large.eq(1).all()
