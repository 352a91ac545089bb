# SPDX-License-Identifier: Apache-2.0
"""Driver calls that fail beside PyTorch's own use of the device: what PyTorch launches next reports no error of ours,
and a retry finds every byte at its address. On a GPU it is in the suite gpu; here it runs on the emulation, too."""
import pytest
import stillwake as sw
import torch
from places import DEVICE, MIB, needs_a_driver, synchronize
from stillwake import _cpu

pytestmark = needs_a_driver


@pytest.fixture(autouse=True)
def calls_come_in_one_order():
    _cpu.set_pinning_threads(1)
    yield
    _cpu.inject_faults("")
    _cpu.set_host_budget(None)


def the_next_launch_reports_nothing():
    assert torch.ones(1000, device=DEVICE).sum() == 1000
    synchronize()


def content(seed):
    return torch.arange(3 * MIB, dtype=torch.int32, device=DEVICE) * seed


def in_every_place(transition, ready, check):
    """Fails the nth driver call of the transition for every n, retries it, and checks; answers how many there are."""
    for places in range(1000):
        ready(places)
        _cpu.inject_faults(f"*:{places + 1}={'CUDA_ERROR_OUT_OF_MEMORY' if places % 2 else 'CUDA_ERROR_UNKNOWN'}")
        try:
            transition()
        except sw.Error as error:
            assert not isinstance(error, sw.Lost), error
        injected = _cpu.injected_faults()
        _cpu.inject_faults("")
        the_next_launch_reports_nothing()
        transition()  # a no-op where the failure was got over
        check(places)
        if injected == 0:
            return places
    raise AssertionError("there is no end of it")


def test_every_call_of_a_sleep_and_of_a_wake_fails_once(make_shard):
    """FR-B4"""
    shard = make_shard()
    with shard.pool():
        pooled = content(1)
    adopted = content(2)
    sw.adopt(adopted, shard)
    pointers = pooled.data_ptr(), adopted.data_ptr()

    def write(seed):
        pooled.copy_(content(seed + 1))
        adopted.copy_(content(seed + 2))

    def check(seed):
        assert (pooled.data_ptr(), adopted.data_ptr()) == pointers
        assert pooled.equal(content(seed + 1)) and adopted.equal(content(seed + 2))

    def awake_again(seed):
        assert shard.state == "asleep"
        sw.wake(shard)
        check(seed)

    slept = in_every_place(lambda: sw.sleep(shard), write, awake_again)

    def asleep(seed):
        write(seed)
        sw.sleep(shard)

    woken = in_every_place(lambda: sw.wake(shard), asleep, check)
    assert slept > 15 and woken > 15


@pytest.mark.parametrize("refuse, kind", [
    (lambda: _cpu.set_host_budget(4 * MIB), sw.OverBudget),
    (lambda: _cpu.inject_faults("cuMemHostRegister:1"), sw.OutOfHostMemory),
])
def test_host_memory_that_is_refused_is_no_error_of_the_next_launch(refuse, kind, make_shard):
    """FR-C5"""
    shard = make_shard()
    tensor = content(1)
    sw.adopt(tensor, shard)
    refuse()
    with pytest.raises(kind) as raised:
        sw.sleep(shard)
    assert not isinstance(raised.value, torch.OutOfMemoryError), "host memory is not the device's"
    the_next_launch_reports_nothing()
    assert shard.state == "awake" and tensor.add_(1).equal(content(1) + 1)
    _cpu.inject_faults("")
    _cpu.set_host_budget(None)
    sw.sleep(shard)
    sw.wake(shard)
    assert tensor.equal(content(1) + 1)
