# SPDX-License-Identifier: Apache-2.0
"""host_view: the same structure on the pinned bytes, no byte copied, until the shard wakes."""
import collections
import dataclasses
import gc
import io
import os

import pytest
import stillwake as sw
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from process_facts import is_mapped, resident_bytes
from side_by_side import beside

MIB = 1 << 20
os.environ["STILLWAKE_EMULATED_MEMORY"] = "384MiB"  # small enough to be filled


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    dist.destroy_process_group()


def layout(tensor):
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()


def test_views_have_the_layout_and_the_bytes_of_their_tensors(shard):
    base = torch.arange(60.0)
    tensors = {"whole": base, "offset": base[7:], "matrix": base.view(6, 10), "transposed": base.view(6, 10).t(),
               "strided": base[3:50:4], "expanded": base[5:6].expand(4), "scalar": base[9], "none": base[:0],
               "window": torch.as_strided(base, (5, 5), (3, 1), 2), "alone": torch.ones(3, 3)}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    layouts = {name: layout(tensor) for name, tensor in tensors.items()}
    sw.adopt(tensors, shard)
    sw.sleep(shard)
    views = sw.host_view(tensors)
    assert type(views) is dict and list(views) == list(tensors)
    assert {name: layout(view) for name, view in views.items()} == layouts
    assert all(view.equal(expected[name]) for name, view in views.items())
    assert all(view.device.type == "cpu" and view is not tensors[name] for name, view in views.items())
    storages = {name: view.untyped_storage()._cdata for name, view in views.items()}
    assert len(set(storages.values())) == 2 and storages["alone"] != storages["whole"], "aliases stay aliases"
    assert all(is_mapped(view.data_ptr(), max(1, view.nbytes)) for name, view in views.items() if view.numel())


@pytest.mark.parametrize("make", [
    lambda: torch.tensor([True, False, True]),
    lambda: torch.arange(7, dtype=torch.int8),
    lambda: torch.arange(7, dtype=torch.uint8),
    lambda: torch.randn(5, dtype=torch.bfloat16),
    lambda: torch.randn(5, dtype=torch.float16),
    lambda: torch.randn(8).to(torch.float8_e4m3fn),
    lambda: torch.randn(8).to(torch.float8_e5m2),
    lambda: torch.randn(4, dtype=torch.complex64),
    lambda: torch.randn(4, dtype=torch.complex128).conj(),
    lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    lambda: torch.randn(4, dtype=torch.float64),
    lambda: torch.tensor(3),
], ids=lambda make: str(make().dtype) + ("-conj" if make().is_conj() else "") + ("-neg" if make().is_neg() else ""))
def test_every_type_reads_as_it_is(make, shard):
    torch.manual_seed(0)
    tensor = make()
    expected = tensor.clone()
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    view = sw.host_view(tensor)
    assert layout(view)[:4] == layout(tensor)[:4]
    assert (view.is_conj(), view.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    assert view.clone().view(torch.uint8).equal(expected.view(torch.uint8)) if expected.dim() else view.equal(expected)


def test_a_quantized_tensor_reads_as_it_is(shard):
    values = torch.linspace(-1, 1, 12).reshape(3, 4)
    per_tensor = torch.quantize_per_tensor(values, 0.1, 3, torch.qint8)
    scales, zero_points = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.long)
    per_channel = torch.quantize_per_channel(values, scales, zero_points, 0, torch.qint8)
    expected = [per_tensor.dequantize(), per_channel.dequantize()]
    sw.adopt([per_tensor, per_channel], shard)
    sw.sleep(shard)
    views = sw.host_view([per_tensor, per_channel])
    assert [view.dtype for view in views] == [torch.qint8] * 2 and [view.is_quantized for view in views] == [True] * 2
    assert views[0].dequantize().equal(expected[0]) and views[1].dequantize().equal(expected[1])
    assert views[0].q_scale() == 0.1 and views[0].q_zero_point() == 3


def test_a_dtensor_keeps_its_spec_and_works_on_the_mesh(mesh, shard):
    local = torch.arange(12.0).reshape(4, 3)
    tensors = {"sharded": DTensor.from_local(local, mesh, [Shard(0)]),
               "replicated": DTensor.from_local(torch.ones(5), mesh, [Replicate()]),
               "parameter": torch.nn.Parameter(DTensor.from_local(torch.full((2, 2), 3.0), mesh, [Shard(0)]))}
    sw.adopt(tensors, shard)
    sw.sleep(shard)
    views = sw.host_view(tensors)
    for name, view in views.items():
        assert isinstance(view, DTensor), name
        assert (view._spec, view.shape, view.stride(), view.placements) == (
            tensors[name]._spec, tensors[name].shape, tensors[name].stride(), tensors[name].placements)
        assert view.device_mesh is mesh
        assert is_mapped(view.to_local().data_ptr(), view.to_local().nbytes)
    assert views["sharded"].full_tensor().equal(torch.arange(12.0).reshape(4, 3))
    assert views["sharded"].redistribute(mesh, [Replicate()]).to_local().sum() == 66
    other = DTensor.from_local(torch.zeros(4, 3), mesh, [Shard(0)])
    assert other.copy_(views["sharded"]).full_tensor().sum() == 66
    sw.wake(shard)
    assert local.sum() == 66 and tensors["sharded"].to_local().data_ptr() == local.data_ptr()


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    rest: list


Point = collections.namedtuple("Point", "x y")


def test_structures_come_back_as_they_are_and_what_is_elsewhere_passes_through(shard):
    torch.utils._pytree.register_dataclass(Pair)
    inside, other = torch.arange(4.0), torch.ones(2)
    outside = torch.zeros(3)
    sw.adopt([inside, other], shard)
    sw.sleep(shard)
    tree = {"list": [inside, outside, 3, None, "text"], "tuple": (other, {"deep": inside}), "point": Point(inside, 1),
            "ordered": collections.OrderedDict(a=other), "pair": Pair(inside, [other, outside]), "empty": {}}
    views = sw.host_view(tree)
    assert [type(views[name]) for name in tree] == [type(tree[name]) for name in tree]
    assert views["list"][1] is outside and views["list"][2:] == [3, None, "text"]
    assert views["point"].x.equal(torch.arange(4.0)) and views["point"].y == 1
    assert views["tuple"][1]["deep"].data_ptr() == views["list"][0].data_ptr() == views["pair"].first.data_ptr()
    assert views["pair"].rest[0].equal(torch.ones(2)) and views["pair"].rest[1] is outside
    assert views["ordered"]["a"].data_ptr() == views["tuple"][0].data_ptr()
    assert sw.host_view(inside).equal(torch.arange(4.0))


def test_a_module_and_an_optimizer_are_shown_as_their_state_dicts(shard):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    moments = [value["exp_avg"].clone() for value in optimizer.state.values()]
    sw.adopt([model, optimizer], shard)
    sw.sleep(shard)
    views = sw.host_view(model)
    assert list(views) == list(model.state_dict())
    assert all(views[name].equal(value) for name, value in expected.items())
    fresh = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))
    fresh.load_state_dict(views)
    assert all(value.equal(expected[name]) for name, value in fresh.state_dict().items())
    state = sw.host_view(optimizer)
    assert state["param_groups"] == optimizer.state_dict()["param_groups"]
    assert all(state["state"][at]["exp_avg"].equal(value) for at, value in enumerate(moments))
    again = torch.optim.AdamW(fresh.parameters(), lr=0.5)
    again.load_state_dict(state)
    assert again.param_groups[0]["lr"] == 0.01


def test_nothing_is_copied(shard):
    tensors = [torch.full((16 * MIB,), value) for value in (1.0, 2.0)]  # 64 MiB each
    sw.adopt(tensors, shard)
    sw.sleep(shard)
    pinned, resident = shard.stats().host_pinned, resident_bytes()
    views = sw.host_view(tensors)
    assert shard.stats().host_pinned == pinned
    assert resident_bytes() - resident < 4 * MIB
    assert [float(view[-1]) for view in views] == [1.0, 2.0]
    assert all(is_mapped(view.data_ptr(), view.nbytes) for view in views)
    assert views[0].data_ptr() != sw.address(tensors[0])


def test_asking_again_shows_the_same_storage_and_a_later_cycle_the_same_addresses(shard):
    tensor = torch.arange(1000.0)
    sw.adopt([tensor], shard)
    seen = set()
    for cycle in range(3):
        sw.sleep(shard)
        one, other = sw.host_view(tensor), sw.host_view(tensor[5:])
        assert one.untyped_storage()._cdata == other.untyped_storage()._cdata
        assert other.data_ptr() == one.data_ptr() + 20
        seen.add(one.data_ptr())
        sw.wake(shard)
        tensor.add_(1)
    assert len(seen) == 1, "raw backing lies at the same place in every cycle"


def test_what_is_written_through_a_view_is_restored_and_reported_unverified(shard):
    model = torch.nn.Linear(300, 300)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(5.0)
    address = model.weight.data_ptr()
    sw.adopt(model, shard)
    address = model.weight.data_ptr()
    sw.sleep(shard)
    view = sw.host_view(model, write=True)["weight"]
    with torch.no_grad():
        view.lerp_(torch.full((300, 300), 3.0), 0.5)
    report = sw.wake(shard)
    assert not report.verified
    assert model.weight.eq(2).all() and model.bias.eq(5).all()
    assert model.weight.data_ptr() == address
    assert not sw.sleep(shard).is_no_op
    assert sw.wake(shard).verified, "the next cycle is verified again"
    assert model.weight.eq(2).all()


def test_a_view_for_reading_leaves_the_wake_verified_and_the_next_sleep_unchanged(shard):
    tensor = torch.ones(MIB)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    assert sw.host_view(tensor).sum() == MIB
    assert sw.wake(shard).verified
    assert sw.sleep(shard).copied == 0


def test_views_raise_after_the_wake_whatever_is_done_with_them(shard):
    tensor = torch.arange(10.0)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    view = sw.host_view(tensor)
    part = view[2:]
    sw.wake(shard)
    for use in (view.sum, part.clone, view.numpy, lambda: view + tensor, lambda: torch.save(view, io.BytesIO()),
                lambda: view.add_(1), lambda: repr(view), view.data_ptr):
        with pytest.raises(RuntimeError, match=f"shard '{shard.name}' woke.*host view"):
            use()
    assert view.shape == (10,) and tensor.sum() == 45
    sw.sleep(shard)
    assert sw.host_view(tensor).sum() == 45, "a new view works"
    with pytest.raises(RuntimeError, match="woke"):
        view.sum()


def test_a_wake_that_fails_leaves_the_views_as_they_were(shard, make_shard):
    tensor = torch.arange(100.0)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    view = sw.host_view(tensor, write=True)
    view[0] = 50
    with pytest.raises(sw.InvalidArgument):
        sw.wake(shard, timeout=-1)
    assert view.sum() == sum(range(100)) + 50 and shard.state == "asleep"
    free, _ = sw.driver().memory()
    neighbour = make_shard("neighbour")
    with neighbour.pool():
        taken = torch.empty(free // (2 * MIB) * 2 * MIB, dtype=torch.uint8)
    with pytest.raises(sw.OutOfMemory, match="free"):
        sw.wake(shard)
    assert view.sum() == sum(range(100)) + 50, "as after any wake that failed, nothing has changed"
    view[1] = 60
    del taken
    sw.sleep(neighbour)
    sw.wake(shard)
    assert tensor[:3].tolist() == [50, 60, 2]
    with pytest.raises(RuntimeError, match="woke"):
        view.sum()


def test_a_view_is_whole_while_its_tensor_is_dropped(shard):
    tensor, kept = torch.full((MIB,), 7.0), torch.ones(10)
    sw.adopt([tensor, kept], shard)
    sw.sleep(shard)
    view = sw.host_view(tensor)
    del tensor
    gc.collect()
    assert view.eq(7).all()
    sw.trim(shard)
    view.sum()  # of a tensor that is gone: any value, no fault
    sw.wake(shard)
    assert kept.sum() == 10
    with pytest.raises(RuntimeError, match="woke"):
        view.sum()


def test_views_end_with_their_shard(make_shard):
    shard = sw.shard("to be closed under a view")
    tensor = torch.ones(1000)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    view = sw.host_view(tensor)
    with pytest.raises(sw.Busy, match="1 blocks"):
        shard.close()
    assert view.sum() == 1000, "a close that is refused changes nothing"
    del tensor
    gc.collect()
    shard.close()
    with pytest.raises(RuntimeError, match="closed"):
        view.sum()
    del view
    gc.collect()


def test_an_awake_shard_has_no_views_and_says_what_it_is(shard):
    tensor = torch.ones(10)
    sw.adopt([tensor], shard)
    with pytest.raises(sw.Busy, match=f"'{shard.name}'.*awake"):
        sw.host_view({"deep": [tensor]})


@pytest.mark.parametrize("options, told", [(dict(policy="discard"), "discard"), (dict(host_copy="packed"), "packed")])
def test_a_shard_without_a_readable_copy_is_refused_by_name(options, told, make_shard):
    shard = make_shard(**options)
    tensor = torch.ones(10)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    with pytest.raises(sw.InvalidArgument, match=told) as raised:
        sw.host_view(tensor)
    assert shard.name in str(raised.value)


def test_torch_save_of_a_view_writes_its_storage_alone(shard):
    tensors = [torch.full((256,), float(value)) for value in range(50)]
    large = torch.zeros(8 * MIB)
    sw.adopt([tensors, large], shard)
    sw.sleep(shard)
    out = io.BytesIO()
    torch.save(sw.host_view(tensors[3]), out)
    assert 1024 <= out.tell() < 8192, "not the whole arena"
    out.seek(0)
    assert torch.load(out).eq(3).all()


def test_a_view_is_never_made_of_a_shard_that_begins_to_wake(shard):
    tensor = torch.arange(1000.0)
    sw.adopt([tensor], shard)
    faults, read = [], 0

    def look(stop):
        nonlocal read
        while not stop.is_set():
            try:
                total = float(sw.host_view(tensor).sum())
                read += 1
                if total != 499500:
                    faults.append(total)
            except sw.Busy:
                pass
            except RuntimeError as error:
                if "woke" not in str(error):
                    faults.append(error)

    with beside(look, look):
        for _ in range(60):
            sw.sleep(shard)
            sw.wake(shard)
        sw.sleep(shard)
        while read == 0 and not faults:
            pass
    assert not faults and read > 0
    sw.wake(shard)
    assert tensor.sum() == 499500


def test_a_state_dict_of_two_thousand_tensors_is_shown_in_order(shard):
    tensors = {f"layer.{at}": torch.full((8,), float(at)) for at in range(2000)}
    sw.adopt(tensors, shard)
    sw.sleep(shard)
    views = sw.host_view(tensors)
    assert list(views) == list(tensors)
    assert all(float(view[0]) == at for at, view in enumerate(views.values()))


def test_a_module_whose_state_dict_computes_is_told_so(shard):
    module = torch.nn.Linear(4, 4)
    module.register_state_dict_post_hook(lambda self, state, prefix, _: state.update(sum=self.weight.sum()))
    sw.adopt(module, shard)
    sw.sleep(shard)
    with pytest.raises(sw.InvalidArgument, match="state-dict hook.*named_parameters"):
        sw.host_view(module)
    assert set(sw.host_view(dict(module.named_parameters()))) == {"weight", "bias"}
    sw.wake(shard)
