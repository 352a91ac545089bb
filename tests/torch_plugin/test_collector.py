# SPDX-License-Identifier: Apache-2.0
"""The garbage collector in the middle of the package's own calls: no deadlock, nothing lost (FR-G2)."""
import gc
import weakref

import pytest
import stillwake as sw
import torch
from side_by_side import run_all
from stillwake import adopting, shards

pytestmark = pytest.mark.usefixtures("nothing_hangs")


class Ring:
    """A tensor that only the collector can free, with a finalizer that calls the package."""

    finalized = 0

    def __init__(self, tensor, finish=lambda: None):
        self.tensor, self.finish, self.ring = tensor, finish, self

    def __del__(self):
        self.finish()
        Ring.finalized += 1


@pytest.fixture
def eager_collector():
    """The collector runs at every chance there is, so also in the middle of the package's own calls."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


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
