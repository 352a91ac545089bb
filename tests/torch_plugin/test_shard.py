# SPDX-License-Identifier: Apache-2.0
"""Shards by name, their pools, and transitions of sets."""
import gc
import threading

import pytest
import stillwake as sw
import torch
from torch.testing._internal.two_tensor import TwoTensor


def test_asking_again_returns_the_same_shard():
    first = sw.shard("the same")
    assert sw.shard("the same") is first
    assert sw.shard("the same", device="cpu") is first


def test_another_policy_is_an_error_that_names_both():
    sw.shard("of one policy", policy="frozen")
    with pytest.raises(sw.InvalidArgument, match="frozen.*preserve"):
        sw.shard("of one policy")


@pytest.mark.parametrize("wrong, told", [
    (dict(policy="keep"), "'preserve', 'discard', 'frozen'"),
    (dict(host_copy="raw"), "'packed', 'readable'"),
    (dict(backing="none"), "'retain', 'release'"),
    (dict(device="cuda:0"), "cpu"),
    (dict(addresses=1000), "1000"),
])
def test_a_wrong_option_is_named_with_the_right_ones(wrong, told):
    with pytest.raises(sw.InvalidArgument, match=told):
        sw.shard("wrong", **wrong)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_string(name):
    with pytest.raises(sw.InvalidArgument, match="name"):
        sw.shard(name)


def test_new_tensors_of_a_pool_live_in_the_shard(shard):
    outside = torch.ones(1000)
    with shard.pool():
        inside = torch.arange(1000.0)
    after = torch.ones(1000)
    assert [sw.shard_of(tensor) for tensor in (outside, inside, after)] == [None, shard, None]
    address = inside.data_ptr()
    sw.sleep(shard)
    assert shard.stats().mapped == 0
    sw.wake(shard)
    assert inside.data_ptr() == address
    assert inside.equal(torch.arange(1000.0))


def test_pools_nest_and_the_innermost_counts(make_shard):
    outer, inner = make_shard(), make_shard()
    with outer.pool():
        first = torch.ones(10)
        with inner.pool():
            second = torch.ones(10)
        third = torch.ones(10)
    assert [sw.shard_of(tensor) for tensor in (first, second, third)] == [outer, inner, outer]


def test_a_pool_is_not_entered_twice_nor_while_asleep(shard):
    with shard.pool(), pytest.raises(sw.InvalidArgument, match="already"):
        with shard.pool():
            pass
    sw.sleep(shard)
    with pytest.raises(sw.Asleep, match=shard.name):
        with shard.pool():
            pass


def test_a_pool_belongs_to_its_thread(shard):
    owners = []
    with shard.pool():
        other = threading.Thread(target=lambda: owners.append(sw.shard_of(torch.ones(10))))
        other.start()
        other.join()
    assert owners == [None]


def test_a_full_device_leaves_the_pool_as_both_errors(shard):
    with pytest.raises(sw.OutOfMemory) as raised:
        with shard.pool():
            torch.empty(1 << 34)
    assert isinstance(raised.value, torch.OutOfMemoryError) and isinstance(raised.value, sw.Error)
    assert str(1 << 36) in str(raised.value)
    with shard.pool():
        assert sw.shard_of(torch.ones(10)) is shard, "the pool works on"


def test_sleep_and_wake_twice_are_no_ops_that_say_so(make_shard):
    one, other = make_shard(), make_shard()
    with one.pool():
        tensor = torch.ones(5000)
    assert not sw.sleep(one).is_no_op
    assert sw.sleep(one).is_no_op
    assert other.state == "awake"
    assert not sw.wake(one).is_no_op
    assert sw.wake(one, other).is_no_op
    assert tensor.sum() == 5000


def test_awake_wakes_what_sleeps_and_puts_it_back(make_shard):
    asleep, awake = make_shard(), make_shard()
    with asleep.pool():
        tensor = torch.ones(10)
    sw.sleep(asleep)
    with sw.awake(asleep, awake) as both:
        assert both == (asleep, awake)
        assert tensor.sum() == 10
    assert (asleep.state, awake.state) == ("asleep", "awake")


def test_swap_exchanges_two_shards(make_shard):
    first, second = make_shard(), make_shard()
    with first.pool():
        one = torch.full((3000,), 1.0)
    with second.pool():
        two = torch.full((4000,), 2.0)
    sw.adopt([two], second)
    sw.sleep(second)
    report = sw.swap(first, second)
    assert report.kind == "swap"
    assert (first.state, second.state) == ("asleep", "awake")
    assert two.sum() == 8000
    sw.swap(second, first)
    assert one.sum() == 3000
    with pytest.raises(RuntimeError, match="asleep"):
        two.sum()


def test_discard_comes_back_as_zeros(make_shard):
    shard = make_shard(policy="discard")
    with shard.pool():
        tensor = torch.ones(100000)
    assert sw.sleep(shard).copied == 0
    sw.wake(shard)
    assert not tensor.any()


def test_what_is_no_shard_is_refused():
    for call in (sw.sleep, sw.wake, sw.prepare, sw.trim, sw.stats):
        with pytest.raises(sw.InvalidArgument, match="'params'"):
            call("params")


def test_closing_needs_the_tensors_gone():
    shard = sw.shard("to close")
    with shard.pool():
        tensor = torch.ones(1000)
    with pytest.raises(sw.Busy, match="1 blocks of"):
        shard.close()
    assert tensor.sum() == 1000
    del tensor
    shard.close()
    assert "closed" in repr(shard)
    again = sw.shard("to close", policy="discard")
    assert again is not shard and again.state == "awake"
    with pytest.raises(sw.InvalidArgument, match="closed"):
        sw.sleep(shard)


def test_reports_have_figures_and_one_line(shard):
    with shard.pool():
        tensor = torch.rand(1 << 20)
    report = sw.sleep(shard)
    assert report.live == report.copied == 4 << 20
    assert report.freed >= 4 << 20
    assert {step.name for step in report.steps} >= {"copy", "unmap"}
    assert "\n" not in str(report) and str(report).startswith("sleep: 1 of 1 shards")
    woken = sw.wake(shard)
    assert woken.verified and woken.mapped >= 4 << 20
    assert tensor.numel() == 1 << 20


def test_closing_twice_leaves_a_newer_shard_of_the_same_name_alone():
    old = sw.shard("taken over")
    old.close()
    new = sw.shard("taken over")
    model = torch.nn.Linear(2, 2)
    sw.adopt(model, new)
    old.close()
    assert sw.shard("taken over") is new
    model.register_buffer("late", torch.ones(3))
    with pytest.raises(sw.Stray, match="late"):
        sw.sleep(new)
    del model
    gc.collect()
    new.close()


def test_who_is_still_inside_of_awake_keeps_the_shard_awake(shard):
    tensor = torch.ones(10)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    inside, leave = threading.Event(), threading.Event()

    def wakes_it():
        with sw.awake(shard):
            inside.set()
            leave.wait(10)

    first = threading.Thread(target=wakes_it)
    first.start()
    inside.wait(10)
    with sw.awake(shard):
        leave.set()
        first.join()
        assert shard.is_awake and tensor.sum() == 10
    assert shard.state == "asleep", "the last one out"
    with sw.awake(shard), pytest.raises(ValueError), sw.awake(shard):
        raise ValueError("its own")
    assert shard.state == "asleep"


def test_a_wrapper_may_be_used_only_when_all_of_it_is_awake(make_shard):
    first, second = make_shard(), make_shard()
    a, b = torch.ones(4), torch.ones(4)
    sw.adopt([a], first)
    sw.adopt([b], second)
    both = TwoTensor(a, b)
    assert sw.is_awake(both) and sw.shard_of(both) is first
    sw.sleep(second)
    assert not sw.is_awake(both) and sw.is_awake(a)
