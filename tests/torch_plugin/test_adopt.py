# SPDX-License-Identifier: Apache-2.0
"""adopt: one move, identity kept; what it refuses, and what is left when memory ends."""
import numpy
import pytest
import stillwake as sw
import torch


def test_a_module_keeps_every_identity(shard):
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 30))
    model[2].weight = torch.nn.Parameter(model[0].weight.t())  # another parameter on the same storage
    before = {name: (id(tensor), tensor.clone(), tensor.stride())
              for name, tensor in model.state_dict(keep_vars=True).items()}
    done = sw.adopt(model, shard)
    assert done.moved == len({tensor.untyped_storage()._cdata for tensor in model.state_dict().values()})
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert id(tensor) == before[name][0] and tensor.stride() == before[name][2]
        assert tensor.equal(before[name][1])
        assert sw.shard_of(tensor) is shard
    assert model[2].weight.data_ptr() == model[0].weight.data_ptr()
    assert sw.adopt(model, shard).moved == 0, "a second time finds everything inside"


def test_two_shards_never_share_a_storage(make_shard):
    one, other = make_shard(), make_shard()
    tensor = torch.ones(10)
    sw.adopt([tensor], one)
    with pytest.raises(sw.InvalidArgument, match=f"{one.name}"):
        sw.adopt({"name": tensor}, other)
    assert sw.shard_of(tensor) is one


@pytest.mark.parametrize("make, told", [
    (lambda: torch.eye(3).to_sparse(), "layout"),
    (lambda: torch.empty(3, device="meta"), "meta"),
    (lambda: torch.from_numpy(numpy.ones(3)), "PyTorch's allocator"),
    (lambda: torch.ones(3).share_memory_(), "PyTorch's allocator"),
    (lambda: torch.frombuffer(bytearray(16), dtype=torch.uint8), "PyTorch's allocator"),
])
def test_what_cannot_sleep_is_refused_by_name_and_nothing_moves(make, told, shard):
    good = torch.ones(3)
    with pytest.raises(sw.InvalidArgument, match=told) as raised:
        sw.adopt({"good": good, "bad": make()}, shard)
    assert "'bad'" in str(raised.value)
    assert sw.shard_of(good) is None


def test_what_holds_no_tensors_is_refused(shard):
    for tree in (object(), open):
        with pytest.raises(sw.InvalidArgument, match="pytree"):
            sw.adopt(tree, shard)
    with pytest.raises(sw.InvalidArgument, match="shard"):
        sw.adopt([torch.ones(1)], "params")


def test_a_full_device_leaves_each_storage_whole_and_says_which(make_shard):
    shard = make_shard(addresses=10 << 20)
    tensors = {name: torch.full((1 << 20,), float(value))  # 4 MiB each
               for value, name in enumerate(("first", "second", "third"), 1)}
    with pytest.raises(sw.OutOfMemory, match="'third'.*2 storages before it are in the shard"):
        sw.adopt(tensors, shard)
    assert [sw.shard_of(tensor) for tensor in tensors.values()] == [shard, shard, None]
    for value, tensor in enumerate(tensors.values(), 1):
        assert tensor.eq(value).all()


def test_a_later_resize_stays_in_the_shard(shard):
    tensor = torch.ones(10)
    sw.adopt([tensor], shard)
    tensor.untyped_storage().resize_(100000)
    assert sw.shard_of(tensor) is shard and tensor[:10].sum() == 10


def test_a_lazy_clone_is_given_bytes_of_its_own(shard):
    original = torch.ones(10)
    clone = torch._lazy_clone(original)
    sw.adopt([clone], shard)
    clone.add_(1)
    assert sw.shard_of(clone) is shard and original.sum() == 10 and clone.sum() == 20


def test_an_optimizers_state_is_taken_in_at_its_first_step(make_shard):
    params, optim = make_shard("params"), make_shard("optim")
    model = torch.nn.Linear(30, 30)
    optimizer = torch.optim.AdamW(model.parameters())
    sw.adopt(model, params)
    sw.adopt(optimizer, optim)
    model(torch.ones(2, 30)).sum().backward()
    optimizer.step()
    state = optimizer.state[model.weight]
    assert {sw.shard_of(state[key]) for key in ("exp_avg", "exp_avg_sq")} == {optim}
    assert not optimizer._optimizer_step_post_hooks, "no call into the package in later steps"
    assert sw.audit(model, optimizer) == []


def test_strays_are_found_with_names_and_bytes(make_shard):
    params = make_shard("params")
    model = torch.nn.Linear(30, 30, bias=False)
    sw.adopt(model, params)
    model.weight.data = torch.ones(30, 30)
    assert [(stray.name, stray.bytes) for stray in sw.audit(model)] == [("weight", 3600)]
    with pytest.raises(sw.Stray, match="weight") as raised:
        sw.sleep(params)
    assert raised.value.strays == (("weight", 3600),) and params.state == "awake"
    sw.sleep(params, strays="report")
    assert params.state == "asleep" and model.weight.eq(1).all()
    sw.wake(params)
    sw.sleep(params, strays="adopt")
    sw.wake(params)
    assert sw.audit(model) == [] and model.weight.eq(1).all()


@pytest.mark.parametrize("take", [sw.adopt, lambda model, shard: sw.attach(model, params=shard)],
                         ids=["adopt", "attach"])
@pytest.mark.parametrize("make, name", [
    (lambda: torch.nn.LazyLinear(3), "1.weight"),
    (lambda: torch.nn.LazyBatchNorm1d(affine=False), "1.running_mean"),
], ids=["parameter", "buffer"])
def test_a_lazy_module_is_refused_by_name_until_its_first_forward(take, make, name, shard):
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), make())
    with pytest.raises(sw.InvalidArgument, match=rf"'{name}' \(Uninitialized\w+\).*run one forward first"):
        take(model, shard)
    assert sw.shard_of(model[0].weight) is None
    model(torch.ones(2, 4))
    take(model, shard)
    assert sw.audit(model) == []


def test_what_has_no_memory_yet_is_no_stray(shard):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    sw.adopt(model, shard)
    model.append(torch.nn.LazyLinear(3))
    model.append(torch.nn.Linear(3, 2, device="meta", bias=False))
    assert sw.audit(model) == []
    assert not sw.sleep(shard).is_no_op
    sw.wake(shard)
    model[2].to_empty(device="cpu")
    model(torch.ones(2, 4))
    assert [stray.name for stray in sw.audit(model)] == ["1.weight", "1.bias", "2.weight"]
