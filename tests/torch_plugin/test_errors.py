# SPDX-License-Identifier: Apache-2.0
"""Errors: one class a code, with figures, picklable; what they say names the value that was wrong."""
import copy
import pickle
import traceback

import pytest
import stillwake as sw
import torch
from stillwake import _cpu, errors

KINDS = sorted(errors.BY_CODE.values(), key=lambda kind: kind.code)


def test_every_code_has_one_class_that_is_an_error_of_ours():
    assert [kind.code for kind in KINDS] == list(range(1, 14))
    assert all(issubclass(kind, sw.Error) and getattr(sw, kind.__name__) is kind for kind in KINDS)
    assert issubclass(sw.Error, RuntimeError), "what caught PyTorch's errors catches ours"
    assert issubclass(sw.OutOfMemory, torch.OutOfMemoryError) and issubclass(sw.OutOfHostMemory, MemoryError)
    assert issubclass(sw.InvalidArgument, ValueError) and issubclass(sw.TimedOut, TimeoutError)
    assert [kind for kind in KINDS if issubclass(kind, torch.OutOfMemoryError)] == [sw.OutOfMemory]


@pytest.mark.parametrize("kind", KINDS + [sw.Stray, sw.Error], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],
                         ids=["copy", "deepcopy", "pickle"])
def test_an_error_goes_to_another_process_whole(kind, through):
    error = kind("a sentence with 3 figures")
    error.call, error.driver_error = "cuMemMap", 999
    error.strays = (("weight", 16),)
    gone = through(error)
    assert type(gone) is kind and str(gone) == "a sentence with 3 figures" and gone.code == kind.code
    assert (gone.call, gone.driver_error, gone.strays) == ("cuMemMap", 999, (("weight", 16),))


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemcpyDtoHAsync"])
def test_a_failed_driver_call_is_told_with_its_name_and_number(call, shard):
    with shard.pool():
        tensor = torch.ones(1000)
    _cpu.inject_faults(f"{call}:1=CUDA_ERROR_INVALID_HANDLE")
    try:
        with pytest.raises(sw.DriverCallFailed) as raised:
            sw.sleep(shard)
    finally:
        _cpu.inject_faults("")
    assert raised.value.driver_error == 400 and raised.value.call == call
    assert "CUDA_ERROR_INVALID_HANDLE" in str(raised.value) and "injected" in str(raised.value)
    assert tensor.sum() == 1000 and shard.state == "awake"
    assert not sw.sleep(shard).is_no_op


@pytest.mark.parametrize("call, told", [
    (lambda shard: sw.sleep(shard, timeout=-2.5), "-2"),
    (lambda shard: sw.wake(shard, timeout=-3), "-3"),
    (lambda shard: sw.sleep(shard, strays="keep"), "'keep'.*'error', 'adopt' and 'report'"),
    (lambda shard: sw.sleep("params"), "'params'"),
    (lambda shard: sw.wake(None), "None"),
    (lambda shard: sw.swap(shard, 3), "3"),
    (lambda shard: sw.swap("params", shard), "'params'"),
    (lambda shard: sw.swap([shard], ["optim"]), "'optim'"),
    (lambda shard: sw.adopt([torch.ones(1)], "params"), "'params'"),
    (lambda shard: sw.adopt(open, shard), "builtin_function_or_method"),
    (lambda shard: sw.driver("gpu"), "'gpu'.*'cuda' and 'emulated'"),
    (lambda shard: sw.shard("other", policy="hold"), "'hold'.*'preserve', 'discard', 'frozen'"),
    (lambda shard: sw.shard(""), "''"),
    (lambda shard: sw.shard("elsewhere", device="cuda:0"), "cuda:0.*cpu"),
    (lambda shard: sw.attach(3), "int"),
    (lambda shard: sw.attach(torch.nn.Linear(1, 1), "adam"), "str"),
    (lambda shard: sw.attach(torch.nn.Linear(1, 1), group="gloo"), "group"),
    (lambda shard: sw.attach(torch.nn.Linear(1, 1), optim=123), "optim=123"),
    (lambda shard: sw.attach(torch.nn.Linear(1, 1), ema_shard=["x"]), r"ema_shard=\['x'\]"),
    (lambda shard: sw.shard("elsewhere", device="cpu:1"), "cpu:1"),
    (lambda shard: sw.shard(shard.name, addresses=1 << 30), "unset.*not 1073741824"),
    (lambda shard: sw.driver(["x"]), r"\['x'\].*'cuda' and 'emulated'"),
    (lambda shard: sw.driver().memory("a"), "'a'.*0 to 0"),
    (lambda shard: sw.driver().memory(1), "1.*0 to 0"),
    (lambda shard: sw.prepare(shard, background=1.5), "background=1.5"),
    (lambda shard: sw.host_view(torch.ones(1), write="yes"), "write='yes'"),
    (lambda shard: sw.host_view({"model": torch.nn.Linear(1, 1)}), "Linear inside of a dict.*state_dict"),
    (lambda shard: sw.host_view(torch.nn.Linear(1, 1).parameters()), "generator.*list"),
    (lambda shard: sw.host_view({"a": torch.ones(1)}.values()), "dict_values.*list"),
    (lambda shard: sw.host_view([shard]), "Shard.*list"),
    (lambda shard: sw.wake(shard, first=[torch.ones(3)]), r"first\[0\].*no shard"),
])
def test_a_wrong_value_is_named_and_nothing_changes(call, told, shard):
    tensor = torch.ones(10)
    sw.adopt([tensor], shard)
    with pytest.raises(sw.InvalidArgument, match=told) as raised:
        call(shard)
    assert raised.value.code == 6 and raised.value.call == "" and raised.value.driver_error == 0
    assert shard.state == "awake" and tensor.sum() == 10


def test_what_is_not_awake_is_told_by_its_state_and_name(shard):
    tensor = torch.ones(10)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    for call in (lambda: sw.prepare(shard), lambda: sw.adopt([torch.ones(1)], shard), lambda: shard.pool().__enter__()):
        with pytest.raises(sw.Asleep, match=f"'{shard.name}'"):
            call()


@pytest.mark.parametrize("sides", [lambda shard: (shard, []), lambda shard: ([], shard)], ids=["incoming", "outgoing"])
def test_an_empty_side_of_a_swap_is_refused_and_never_means_every_shard(sides, make_shard):
    shard, other = make_shard(), make_shard()
    sw.adopt([torch.ones(10)], other)
    with pytest.raises(sw.InvalidArgument, match="both sides"):
        sw.swap(*sides(shard))
    assert (shard.state, other.state) == ("awake", "awake")


@pytest.mark.parametrize("call, told", [
    (lambda: sw.is_awake("a"), "is_awake: a tensor is needed, not 'a'"),
    (lambda: sw.address([1]), "address: a tensor is needed"),
    (lambda: sw.shard("x", trust="no"), "trust='no'"),
    (lambda: sw.shard("x", trust=True), "policy='frozen'"),
    (lambda: sw.shard("x", addresses=-1), "addresses=-1"),
    (lambda: sw.shard("x", addresses="1GiB"), "addresses='1GiB'"),
    (lambda: sw.shard("x", device="nonsense"), "device='nonsense'"),
    (lambda: sw.shard("x\n"), "printable"),
    (lambda: sw.sleep(timeout="x"), "timeout='x'"),
    (lambda: sw.sleep(timeout=-1), "timeout=-1"),
    (lambda: sw.sleep(checked=1), "checked=1"),
    (lambda: sw.wake(timeout=float("nan")), "timeout=nan"),
    (lambda: sw.wake(streams=3), "streams=3"),
    (lambda: sw.wake(streams=[None]), r"streams\[0\]"),
    (lambda: sw.wake(first=3), "first=int"),
    (lambda: sw.wake(first=[None]), r"first\[0\]"),
    (lambda: sw.sleep([sw.shard("one of a list")]), "one by one"),
    (lambda: sw.swap({"a": 1}, []), "is no shard"),
    (lambda: sw.adopt(None, sw.shard("for none")), "NoneType"),
    (lambda: sw.attach(torch.nn.Linear(1, 1), ema=3), "int"),
    (lambda: sw.host_view({1, 2}), "set"),
    (lambda: sw.install(), "emulated"),
])
def test_a_wrong_value_is_named_with_what_would_be_right(call, told):
    with pytest.raises(sw.InvalidArgument, match=told):
        call()


def test_a_tree_that_holds_itself_is_refused(shard):
    tree = [torch.ones(3)]
    tree.append(tree)
    with pytest.raises(sw.InvalidArgument, match="holds itself"):
        sw.adopt(tree, shard)
    assert sw.shard_of(tree[0]) is None


def test_a_signal_is_not_late_by_the_whole_wait(make_shard):
    import signal
    import time

    asleep, full = make_shard(), make_shard()
    with asleep.pool():
        tensor = torch.ones(64 << 20)
    sw.sleep(asleep)
    with full.pool():
        free = sw.driver().memory()[0]
        held = torch.empty(free - (64 << 20), dtype=torch.uint8)
    before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            sw.wake(asleep, timeout=60)
        assert time.monotonic() - start < 30
        with pytest.raises(sw.TimedOut, match="of 0.5 s"):
            sw.wake(asleep, timeout=0.5)
    finally:
        signal.signal(signal.SIGALRM, before)
    del held
    sw.sleep(full)
    sw.wake(asleep)
    assert tensor.sum() == 64 << 20


def raised_by(call):
    with pytest.raises(sw.Error) as raised:
        call()
    return raised.value


def test_the_kind_of_an_error_is_told_once(make_shard):
    """By its class, which a traceback names: "Busy: busy: ..." would tell it twice."""
    shard, asleep, small = make_shard(), make_shard(), make_shard(addresses=2 << 20)
    tensor = torch.ones(10)
    sw.adopt([tensor], shard)
    sw.sleep(asleep)

    def fill():
        with shard.pool():
            torch.empty(1 << 34)

    _cpu.inject_faults("cuMemUnmap:1=CUDA_ERROR_INVALID_HANDLE")
    failed = raised_by(lambda: sw.sleep(shard))
    _cpu.inject_faults("")
    told = [failed, raised_by(shard.close), raised_by(fill), raised_by(lambda: sw.prepare(asleep)),
            raised_by(lambda: asleep.pool().__enter__()), raised_by(lambda: sw.host_view(tensor)),
            raised_by(lambda: sw.adopt([torch.ones(1 << 20)], small)), raised_by(lambda: sw.shard("x", addresses=1000)),
            raised_by(lambda: sw.adopt([tensor], small))]
    assert {type(error) for error in told} == {sw.DriverCallFailed, sw.Busy, sw.OutOfMemory, sw.Asleep,
                                               sw.InvalidArgument}
    kinds = ["driver call failed: ", "busy: ", "out of device memory: ", "asleep: ", "invalid argument: "]
    for error in told:
        line = "".join(traceback.format_exception_only(error))
        assert line.startswith(f"stillwake.errors.{type(error).__name__}: ")
        assert [kind for kind in kinds if kind in line] == [], line


def test_a_sleeping_tensor_in_a_wrong_place_is_named_and_not_read(make_shard):
    shard, tensor = make_shard(), torch.ones(10)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    for call in (lambda: sw.wake(shard, timeout=tensor), lambda: sw.wake(shard, streams=tensor),
                 lambda: sw.sleep(shard, strays=tensor), lambda: sw.sleep(shard, checked=tensor),
                 lambda: sw.adopt([], tensor), lambda: sw.sleep(tensor), lambda: sw.use(tensor),
                 lambda: sw.shard(tensor), lambda: sw.shard("x", device=tensor), lambda: sw.driver(tensor)):
        with pytest.raises(sw.InvalidArgument, match="a Tensor"):
            call()
    assert shard.state == "asleep"


def test_a_view_of_an_object_that_pytorch_does_not_open_is_refused(make_shard):
    class Holder:
        def __init__(self, tensor):
            self.tensor = tensor

    shard, tensor = make_shard(), torch.ones(10)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    for tree in (Holder(tensor), {"inside": [Holder(tensor)]}):
        with pytest.raises(sw.InvalidArgument, match="a Holder holds its tensors out of reach"):
            sw.host_view(tree)
    assert sw.host_view({"lr": 0.1, "name": "x", "none": None, "kind": torch.float32})["name"] == "x"
