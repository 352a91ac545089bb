# SPDX-License-Identifier: Apache-2.0
"""The walk that finds tensors: every structure, every name, wrappers down to their storages, each moved once."""
import collections
import dataclasses

import pytest
import stillwake as sw
import torch
from stillwake import walk
from torch.utils._python_dispatch import TorchDispatchMode


@dataclasses.dataclass
class State:
    average: torch.Tensor
    steps: int
    more: list


Point = collections.namedtuple("Point", "x y")


class Scaled(torch.Tensor):
    """A traceable wrapper subclass of two tensors, as quantized types are."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)

    def __init__(self, values, scale):
        self.values, self.scale = values, scale

    def __tensor_flatten__(self):
        return ["values", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inside, context, size, stride):
        return Scaled(inside["values"], inside["scale"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = [each.values.float() * each.scale if isinstance(each, Scaled) else each for each in args]
        return function(*plain, **(kwargs or {}))


def test_names_say_where_a_tensor_was_found():
    t = [torch.ones(1) for _ in range(8)]
    tree = {"list": [t[0], {"deep": t[1]}], "tuple": (t[2], 3), "point": Point(t[3], None),
            "state": State(t[4], 5, [t[5]]), "ordered": collections.OrderedDict(a=t[6]), 7: t[7],
            "text": "no tensor", "none": None}
    found = dict(walk.named_tensors(tree))
    assert {name: id(tensor) for name, tensor in found.items()} == {
        "list[0]": id(t[0]), "list[1].deep": id(t[1]), "tuple[0]": id(t[2]), "point[0]": id(t[3]),
        "state.average": id(t[4]), "state.more[0]": id(t[5]), "ordered.a": id(t[6]), "7": id(t[7])}


def test_a_module_shows_parameters_and_buffers_under_every_name():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.BatchNorm1d(2),
                                torch.nn.Linear(2, 2, bias=False))
    model[2].weight = model[0].weight
    model.register_buffer("hidden", torch.ones(1), persistent=False)
    names = [name for name, _ in walk.named_tensors(model)]
    assert sorted(names) == sorted(["0.weight", "2.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var",
                                    "1.num_batches_tracked", "hidden"])


def test_an_optimizer_shows_its_state_and_tensor_rates_but_not_what_it_steps():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), amsgrad=True)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    names = {name for name, _ in walk.named_tensors(optimizer)}
    moments = {f"state[{at}].{key}" for at in range(2) for key in ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")}
    assert names == moments | {"param_groups[0].lr"}
    assert {name for name, _ in walk.named_tensors(optimizer, with_params=True)} == names | {"params[0]", "params[1]"}


def test_a_wrapper_subclass_is_moved_by_what_is_inside_and_stays_what_it_is(shard):
    inner = torch.arange(-4, 4, dtype=torch.int8), torch.tensor([0.5])
    wrapped = Scaled(*inner)
    expected = (wrapped + 0).clone()
    holder = torch.nn.Module()
    holder.register_buffer("weight", wrapped)
    assert sw.adopt(holder, shard).moved == 2
    assert [sw.shard_of(each) for each in inner] == [shard, shard] and sw.shard_of(wrapped) is shard
    for _ in range(2):
        sw.sleep(shard)
        with pytest.raises(RuntimeError, match="asleep"):
            wrapped + 0
        view = sw.host_view(wrapped)
        assert type(view) is Scaled and (view + 0).equal(expected)
        sw.wake(shard)
        assert (wrapped + 0).equal(expected) and wrapped.values is inner[0]


def test_a_wrapper_in_a_wrapper_is_taken_by_the_innermost():
    inside = Scaled(torch.ones(2, dtype=torch.int8), torch.ones(1))
    outer = Scaled(inside, torch.ones(1))
    assert [tensor.dtype for tensor in walk.innermost(outer)] == [torch.int8, torch.float32, torch.float32]
    assert list(walk.innermost(inside.scale)) == [inside.scale]


def test_looking_runs_no_operator():
    ran = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            ran.append(function)
            return function(*args, **(kwargs or {}))

    model = torch.nn.Linear(3, 3)
    with Spy():
        assert len(list(walk.named_storages([model, {"scaled": Scaled(torch.ones(2), torch.ones(1))}]))) == 4
    assert [function for function in ran if "ones" not in str(function) and "fill" not in str(function)
            and "empty" not in str(function)] == []


@pytest.mark.parametrize("tree", [object(), open, torch.nn.Linear, (value for value in [])],
                         ids=lambda tree: type(tree).__name__)
def test_what_cannot_be_looked_into_is_refused_at_the_top(tree):
    with pytest.raises(sw.InvalidArgument, match="pytree"):
        list(walk.named_tensors(tree))


@pytest.mark.parametrize("tree", [None, 3, "text", 2.5, [], {}, (), [None, 3]], ids=repr)
def test_what_holds_no_tensor_gives_none(tree, shard):
    assert list(walk.named_tensors(tree)) == []
    assert sw.audit(tree) == []
    if isinstance(tree, walk.PLAIN_VALUES):
        with pytest.raises(sw.InvalidArgument, match="holds no tensors"):
            sw.adopt(tree, shard)
    else:
        assert sw.adopt(tree, shard).moved == 0


def test_audit_names_each_storage_once_with_its_whole_size():
    base = torch.ones(100)
    found = sw.audit({"part": base[:10], "whole": base, "other": torch.ones(3)})
    assert [(stray.name, stray.bytes) for stray in found] == [("part", 400), ("other", 12)]
