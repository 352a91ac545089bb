# SPDX-License-Identifier: Apache-2.0
"""Pools: what they make is guarded; a scope belongs to the thread that entered it, and a refused exit loses nothing."""
import asyncio
import threading

import pytest
import stillwake as sw
import torch
from pool_scopes import interrupted_at_every_line, left_out_of_order
from side_by_side import run_all

pytestmark = pytest.mark.usefixtures("nothing_hangs")


def in_thread(name, body):
    """Runs the body in a thread of that name and raises what it raised."""
    def named():
        threading.current_thread().name = name
        body()

    run_all([named])


def test_a_pool_left_in_another_thread_names_both_and_stays_what_it_is(shard):
    pool = shard.pool()

    def leave():
        told = rf"leaving.*'{shard.name}' in thread 'leaver'.*'MainThread'.*entered"
        with pytest.raises(sw.InvalidArgument, match=told):
            pool.__exit__(None, None, None)
        assert sw.shard_of(torch.ones(3)) is None
        with shard.pool():
            assert sw.shard_of(torch.ones(3)) is shard, "its own scopes work"

    assert pool.__enter__() is shard
    in_thread("leaver", leave)
    inside = torch.ones(10)
    assert sw.shard_of(inside) is shard, "the scope goes on where it was entered"
    pool.__exit__(None, None, None)
    assert sw.shard_of(torch.ones(3)) is None
    sw.sleep(shard)
    with pytest.raises(RuntimeError, match="asleep"):
        inside.sum()


def test_an_error_on_its_way_is_the_context_of_the_refusal(shard):
    def leave(pool):
        with pytest.raises(sw.InvalidArgument, match="leaving") as raised:
            with pool_of_another_thread(pool):
                raise KeyError("on its way")
        assert isinstance(raised.value.__context__, KeyError)

    class pool_of_another_thread:
        def __init__(self, pool):
            self.pool = pool

        def __enter__(self):
            return self.pool

        def __exit__(self, *error):
            return self.pool.__exit__(*error)

    pool = shard.pool()
    with pool:
        in_thread("leaver", lambda: leave(pool))


def test_pools_are_left_in_any_order(make_shard):
    outer, inner = make_shard(), make_shard()
    left_out_of_order(outer, inner, "cpu")
    with outer.pool(), inner.pool():
        assert sw.shard_of(torch.ones(3)) is inner


def test_coroutines_that_overlap_leave_nothing_behind(make_shard):
    shards = [make_shard() for _ in range(3)]

    async def make(shard, turns):
        with shard.pool():
            for _ in range(turns):
                await asyncio.sleep(0)
            torch.ones(1)

    async def all_of_them():
        await asyncio.gather(*(make(shard, turns) for turns, shard in enumerate(shards, 1)))

    asyncio.run(all_of_them())
    assert sw.shard_of(torch.ones(1)) is None


def test_a_generator_that_is_dropped_inside_another_pool_ends_its_own(make_shard):
    outer, inner = make_shard(), make_shard()

    def inside():
        with outer.pool():
            yield

    generator = inside()
    next(generator)
    with inner.pool():
        del generator
        assert sw.shard_of(torch.ones(1)) is inner
    assert sw.shard_of(torch.ones(1)) is None


def test_an_interrupt_at_any_line_leaves_no_thread_inside(shard):
    assert interrupted_at_every_line(shard, "cpu") >= 12
    sw.sleep(shard)
    sw.wake(shard)


def test_a_pool_is_entered_once(shard):
    with pytest.raises(sw.InvalidArgument, match="nobody entered it"):
        shard.pool().__exit__(None, None, None)
    with shard.pool() as same, pytest.raises(sw.InvalidArgument, match="already"):
        with same.pool():
            pass
    pool = shard.pool()
    with pool, pytest.raises(sw.InvalidArgument, match="entered by thread 'MainThread'.*a pool\\(\\) of its own"):
        pool.__enter__()
    assert sw.shard_of(torch.ones(3)) is None


def test_a_pool_decorates_a_function(shard):
    @shard.pool()
    def make():
        return torch.ones(3)

    assert [sw.shard_of(make()) for _ in range(2)] == [shard, shard]
    assert sw.shard_of(torch.ones(3)) is None


@pytest.mark.parametrize("make", [
    lambda: torch.ones(9),
    lambda: torch.arange(9.0).view(3, 3).t(),
    lambda: torch.ones(9).split(3)[1],
    lambda: torch.ones(3, 3).sort().indices,
    lambda: torch.tensor([1.0, 2.0]),
    lambda: torch.nn.Parameter(torch.empty(3).uniform_()),
    lambda: torch.nn.Linear(3, 3).weight,
    lambda: torch.ones(3).to(torch.bfloat16),
    lambda: torch.ones(3).add(1).mul_(2),
    lambda: torch.empty(0).set_(torch.ones(4).untyped_storage(), 0, (4,), (1,)),
    lambda: torch.stack([torch.ones(3)] * 2).unbind()[0],
    lambda: torch.where(torch.ones(3) > 2, 1, 0),
    lambda: torch.nn.functional.layer_norm(torch.ones(2, 3, requires_grad=True), (3,)),
    lambda: torch._foreach_add([torch.ones(3)], 1)[0],
    lambda: torch.ones(3).to_sparse().values(),
    lambda: torch.load(SAVED)["tensor"],
], ids=lambda make: None)
def test_whatever_makes_a_tensor_in_a_pool_it_is_guarded(make, shard, tmp_path):
    global SAVED
    SAVED = tmp_path / "saved"
    torch.save({"tensor": torch.ones(3)}, SAVED)
    with shard.pool():
        made = make()
    assert sw.shard_of(made) is shard and shard._raw.has_adopted(made.untyped_storage()._cdata)
    sw.sleep(shard)
    with pytest.raises(RuntimeError, match="asleep"):
        made.clone()
    sw.wake(shard)
    made.clone()


def test_what_is_made_outside_is_not_watched(make_shard):
    shard, other = make_shard(), make_shard()
    with shard.pool():
        with other.pool():
            inner = torch.ones(3)
        outer = torch.ones(3)
    outside = torch.ones(3)
    held = [(inner, other), (outer, shard)]
    for tensor, home in held:
        assert [each._raw.has_adopted(tensor.untyped_storage()._cdata) for each in (shard, other)] == \
            [home is shard, home is other]
    assert not shard._raw.has_adopted(outside.untyped_storage()._cdata)
