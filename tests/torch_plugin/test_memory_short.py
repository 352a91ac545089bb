# SPDX-License-Identifier: Apache-2.0
"""Memory that runs out, on the device and on the host: told with figures, nothing lost, nothing else looks like it."""
import os
import threading
import time

import pytest
import stillwake as sw
import torch
from side_by_side import beside
from stillwake import _cpu

MIB = 1 << 20
os.environ["STILLWAKE_EMULATED_MEMORY"] = "96MiB"  # small enough to be filled


@pytest.fixture(autouse=True)
def nothing_stays_limited():
    yield
    sw.driver()
    _cpu.inject_faults("")
    _cpu.set_host_budget(None)


def sleeping(shard, mebibytes=16):
    """A tensor asleep in the shard, and a copy of it outside."""
    tensor = torch.arange(mebibytes * MIB // 4, dtype=torch.int32)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    return tensor, torch.arange(mebibytes * MIB // 4, dtype=torch.int32)


def fill_device(shard, but=0):
    """One tensor on all free device memory but so many bytes."""
    free, _ = sw.driver().memory()
    with shard.pool():
        return torch.empty((free - but) // (2 * MIB) * 2 * MIB, dtype=torch.uint8)


def test_a_wake_without_room_has_the_figures_and_changes_nothing(make_shard):
    """FR-C1"""
    shard, neighbour = make_shard(), make_shard("neighbour")
    tensor, expected = sleeping(shard)
    taken = fill_device(neighbour, but=6 * MIB)
    free, _ = sw.driver().memory()
    for _ in range(3):
        with pytest.raises(sw.OutOfMemory) as raised:
            sw.wake(shard)
        assert str(16 * MIB) in str(raised.value) and str(free) in str(raised.value), "needed and free bytes"
        assert isinstance(raised.value, torch.OutOfMemoryError)
        assert sw.driver().memory()[0] == free and shard.state == "asleep"
        with pytest.raises(RuntimeError, match="asleep"):
            tensor.sum()
    assert taken.numel() > 0
    del taken
    sw.sleep(neighbour)
    sw.wake(shard)
    assert tensor.equal(expected)


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync"])
def test_a_failed_wake_never_costs_the_host_copy(call, make_shard):
    """FR-C2: every call of a kind fails once, the last included; then every byte is compared."""
    shard = make_shard()
    tensor, expected = sleeping(shard, 6)
    for place in range(1, 40):
        _cpu.inject_faults(f"{call}:{place}")
        try:
            sw.wake(shard)
        except sw.Error as error:
            assert "injected" in str(error) and error.call == call
            assert shard.state == "asleep"
        else:
            if _cpu.injected_faults() == 0:
                break
        _cpu.inject_faults("")
        sw.wake(shard)
        assert tensor.equal(expected)
        sw.sleep(shard)
    assert place > 1, f"a wake makes {call}"
    assert tensor.equal(expected)


def test_a_wake_with_a_timeout_waits_for_a_neighbour_that_frees_late(make_shard):
    """FR-C3"""
    shard, neighbour = make_shard(), make_shard("neighbour")
    tensor, expected = sleeping(shard)
    taken = fill_device(neighbour)
    with pytest.raises(sw.TimedOut):
        sw.wake(shard, timeout=0.05)
    assert shard.state == "asleep"
    later = threading.Timer(0.3, lambda: sw.sleep(neighbour))
    began = time.monotonic()
    later.start()
    sw.wake(shard, timeout=30)
    assert 0.25 < time.monotonic() - began < 20
    later.join()
    assert tensor.equal(expected) and taken.numel() > 0
    del taken


@pytest.mark.parametrize("refuse, kind", [
    (lambda: _cpu.set_host_budget(4 * MIB), sw.OverBudget),
    (lambda: _cpu.inject_faults("cuMemHostRegister:1"), sw.OutOfHostMemory),
])
def test_host_memory_that_is_refused_leaves_everything_awake(refuse, kind, make_shard):
    """FR-C5"""
    shard = make_shard()
    tensor = torch.arange(5 * MIB)
    sw.adopt([tensor], shard)
    refuse()
    with pytest.raises(kind) as raised:
        sw.sleep(shard)
    assert not isinstance(raised.value, torch.OutOfMemoryError), "host memory is not the device's"
    assert shard.state == "awake" and tensor.add_(1)[-1] == 5 * MIB
    _cpu.inject_faults("")
    _cpu.set_host_budget(None)
    sw.sleep(shard)
    sw.wake(shard)
    assert tensor.equal(torch.arange(1, 5 * MIB + 1))


def test_a_full_device_leaves_a_pool_with_the_figures_and_the_pool_works_on(make_shard):
    shard = make_shard()
    free, total = sw.driver().memory()
    with pytest.raises(sw.OutOfMemory) as raised:
        with shard.pool():
            kept = torch.ones(MIB)
            torch.empty(total - 2 * MIB, dtype=torch.uint8)
    assert isinstance(raised.value, torch.OutOfMemoryError) and isinstance(raised.value, sw.Error)
    assert shard.name in str(raised.value) and str(total - 2 * MIB) in str(raised.value)
    with shard.pool():
        again = torch.ones(MIB)
    assert kept.sum() + again.sum() == 2 * MIB and sw.shard_of(again) is shard


def test_the_programs_own_errors_leave_a_pool_as_they_are(make_shard):
    shard = make_shard()
    for error in (ValueError("its own"), RuntimeError("its own"), KeyboardInterrupt(),
                  torch.OutOfMemoryError("its own")):
        with pytest.raises(type(error)) as raised:
            with shard.pool():
                raise error
        assert raised.value is error
    with pytest.raises(sw.OutOfMemory):
        with shard.pool():
            torch.empty(1 << 40, dtype=torch.uint8)
    with pytest.raises(RuntimeError) as raised:  # an error of long ago is not told again
        with shard.pool():
            raise RuntimeError("later")
    assert str(raised.value) == "later"


def test_an_error_that_was_caught_inside_a_pool_is_not_told_for_another(make_shard):
    shard = make_shard()
    with pytest.raises(RuntimeError) as raised:
        with shard.pool():
            try:
                torch.empty(1 << 40, dtype=torch.uint8)
            except RuntimeError:
                pass
            torch.ones(2) + torch.ones(3)
    assert "must match" in str(raised.value) and not isinstance(raised.value, sw.Error)


def test_a_sleeping_shard_never_looks_like_a_full_device(make_shard):
    shard = make_shard()
    with pytest.raises(sw.Asleep, match=shard.name) as raised:
        with shard.pool():
            sw.sleep(shard)
            torch.ones(10)
    assert not isinstance(raised.value, torch.OutOfMemoryError)


def test_a_busy_shard_never_looks_like_a_full_device(make_shard):
    shard = make_shard()
    with shard.pool():
        held = torch.ones(4 * MIB)
    seen = []

    def allocate(stop):
        while not stop.is_set():
            try:
                with shard.pool():
                    torch.ones(100)
            except Exception as error:
                seen.append(error)

    with beside(allocate, allocate, allocate):
        for _ in range(8):
            sw.sleep(shard)
            sw.wake(shard)
    guarded = f"stillwake: shard '{shard.name}' is asleep"  # between its memory and its content the guard went up
    assert seen and [error for error in seen
                     if not isinstance(error, (sw.Asleep, sw.Busy)) and not str(error).startswith(guarded)] == []
    assert held.eq(1).all()


def test_a_lost_driver_never_looks_like_a_full_device(make_shard):
    shard = make_shard()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with shard.pool():
                torch.ones(10)
        except sw.Lost as error:
            status = 2 if isinstance(error, torch.OutOfMemoryError) else 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with shard.pool():
        assert torch.ones(10).sum() == 10


def test_figures_of_a_shard_are_its_own(make_shard):
    """FR-C6: a neighbour that allocates changes nothing in them."""
    shard, neighbour = make_shard(), make_shard("neighbour")
    with shard.pool():
        tensor = torch.ones(3 * MIB)
    before = shard.stats()
    figures = (before.blocks, before.allocated, before.mapped, before.host_pinned)
    with neighbour.pool():
        other = torch.ones(2 * MIB)
    after = shard.stats()
    assert (after.blocks, after.allocated, after.mapped, after.host_pinned) == figures
    assert before.allocated >= 12 * MIB and tensor.numel() + other.numel() == 5 * MIB


def test_strays_without_room_to_move_stay_with_a_warning_and_the_sleep_goes_on(make_shard):
    model = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.Adam(model.parameters())
    job = sw.attach(model, optimizer, params=make_shard(), optim=make_shard())
    free, _ = sw.driver().memory()
    neighbour = make_shard("neighbour")
    with neighbour.pool():
        taken = torch.empty(free - 2 * MIB, dtype=torch.uint8)
    model(torch.ones(1, 1000)).sum().backward()
    with pytest.warns(UserWarning, match="stays outside"):
        optimizer.step()
    with pytest.warns(UserWarning, match="tensors .* stay outside .* until its next sleep: .*needed"):
        job.sleep()
    assert not job.is_awake
    job.wake()
    del taken
    neighbour.close()
    job.sleep()
    job.wake()
    assert sw.audit(model, optimizer) == []


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_a_sparse_stray_is_told_with_its_bytes_and_keeps_nobody_awake(layout, make_shard):
    model = torch.nn.Linear(3, 3)
    shard = make_shard()
    job = sw.attach(model, params=shard)
    sparse = torch.eye(3).to_sparse(layout=layout)
    model.register_buffer("adjacency", sparse)
    found, = sw.audit(model)
    wanted = 2 * 3 * 8 + 3 * 4 if layout == torch.sparse_coo else (4 + 3) * 8 + 3 * 4
    assert (found.name, found.bytes) == ("adjacency", wanted)
    with pytest.raises(sw.Stray, match="adjacency"):
        sw.sleep(shard)
    with pytest.warns(UserWarning, match="adjacency.*sparse"):
        job.sleep()
    assert not job.is_awake and sparse.to_dense().equal(torch.eye(3))
    job.wake()
    sw.sleep(shard, strays="report")
    sw.wake(shard)


def test_an_awake_scope_that_waits_for_memory_lets_the_one_leave_that_has_it(make_shard):
    large, waiting = make_shard(), make_shard("waiting")
    kept, _ = sleeping(large, 60)
    tensor, expected = sleeping(waiting, 60)
    inside, leave, told = threading.Event(), threading.Event(), []

    def has_the_memory():
        with sw.awake(large):
            inside.set()
            leave.wait(30)
        told.append("left")

    first = threading.Thread(target=has_the_memory)
    first.start()
    inside.wait(10)
    with pytest.raises(sw.OutOfMemory), sw.awake(waiting):
        pass
    with pytest.raises(sw.TimedOut, match="in all"), sw.awake(waiting, timeout=0.05):
        pass
    threading.Timer(0.3, leave.set).start()
    begin = time.monotonic()
    with sw.awake(waiting, timeout=30):
        assert time.monotonic() - begin < 10 and large.state == "asleep"
        assert tensor.equal(expected)
    first.join()
    assert told == ["left"] and kept.numel() > 0
