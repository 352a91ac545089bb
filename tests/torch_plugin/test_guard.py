# SPDX-License-Identifier: Apache-2.0
"""The guard: every use of a sleeping tensor is a Python error with our text; what needs no memory works on (FR-G5)."""
import copy
import io
import pickle

import numpy
import pytest
import stillwake as sw
import torch
import torch._dynamo.testing
from torch.utils import dlpack


class Sleeper:
    """A module with its optimizer, a loss that waits for backward, and tensors outside; prepared while awake."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
        self.weight = self.model[0].weight
        self.plain = torch.arange(64.0).reshape(8, 8)
        self.whole = torch.arange(16)
        self.mask = torch.tensor([True, False] * 4)
        self.bf16 = torch.ones(8, dtype=torch.bfloat16)
        self.view = self.plain[2:4].t()
        self.outside = torch.ones(8, 8)
        self.optimizers = {}
        for kind, options in (("foreach", dict(foreach=True)), ("fused", dict(fused=True)),
                              ("single", dict(foreach=False))):
            self.optimizers[kind] = torch.optim.AdamW([torch.nn.Parameter(torch.ones(8, 8))], lr=0.1, **options)
            self._set_gradient(kind)
            self.optimizers[kind].step()
            self._set_gradient(kind)
        self.loss = self.model(self.outside).square().sum()

    def _set_gradient(self, kind):
        for parameter in self.optimizers[kind].param_groups[0]["params"]:
            parameter.grad = torch.full((8, 8), 0.5)

    def adopted(self):
        return [self.model, [self.plain, self.whole, self.mask, self.bf16],
                [group["params"] for optimizer in self.optimizers.values() for group in optimizer.param_groups],
                *self.optimizers.values()]


def in_no_grad(use):
    def run(s):
        with torch.no_grad():
            return use(s)
    return run


#: A name and what it does with something that sleeps.
USES = {
    "add": lambda s: s.plain + 1,
    "multiply by a tensor outside": lambda s: s.outside * s.plain,
    "matrix product": lambda s: s.outside @ s.plain,
    "sum": lambda s: s.plain.sum(),
    "comparison": lambda s: s.plain == s.outside,
    "equal": lambda s: torch.equal(s.plain, s.outside),
    "truth": lambda s: bool(s.mask[0]),
    "add in place": lambda s: s.plain.add_(1),
    "multiply in place through a view": lambda s: s.view.mul_(2),
    "zero in place": lambda s: s.plain.zero_(),
    "fill in place": lambda s: s.plain.fill_(3),
    "random in place": lambda s: s.plain.normal_(),
    "index": lambda s: s.plain[s.plain > 3],
    "index by a mask": lambda s: s.outside[s.mask],
    "assign an element": lambda s: s.plain.__setitem__((0, 0), 1.0),
    "index_put_": lambda s: s.outside.index_put_((s.whole[:8] % 8,), torch.zeros(8)),
    "out=": lambda s: torch.add(s.outside, 1, out=s.plain),
    "where": lambda s: torch.where(s.mask, s.outside, 0),
    "cat": lambda s: torch.cat([s.outside, s.plain]),
    "clone": lambda s: s.plain.clone(),
    "contiguous": lambda s: s.view.contiguous(),
    "to another type": lambda s: s.plain.to(torch.float64),
    "bf16 to float": lambda s: s.bf16.float(),
    "copy_ to it": lambda s: s.plain.copy_(s.outside),
    "copy_ from it": lambda s: s.outside.copy_(s.plain),
    "item": lambda s: s.plain[0, 0].item(),
    "float()": lambda s: float(s.plain[0, 0]),
    "tolist": lambda s: s.whole.tolist(),
    "iterate and print": lambda s: [str(row) for row in s.plain],
    "repr": lambda s: repr(s.plain),
    "repr of a parameter": lambda s: repr(s.weight),
    "format": lambda s: f"{s.plain[0, 0]:.2f}",
    "numpy": lambda s: s.plain.numpy(),
    "numpy.asarray": lambda s: numpy.asarray(s.plain),
    "numpy function": lambda s: numpy.dot(s.plain, numpy.ones(8)),
    "DLPack": lambda s: dlpack.to_dlpack(s.plain),
    "from_dlpack": lambda s: torch.from_dlpack(s.plain),
    "numpy.from_dlpack": lambda s: numpy.from_dlpack(s.plain),
    "data_ptr of the tensor": lambda s: s.plain.data_ptr(),
    "data_ptr of the storage": lambda s: s.plain.untyped_storage().data_ptr(),
    "element of the storage": lambda s: s.plain.untyped_storage()[0],
    "tolist of the storage": lambda s: s.plain.untyped_storage().tolist(),
    "clone of the storage": lambda s: s.plain.untyped_storage().clone(),
    "resize_ of the storage": lambda s: s.plain.untyped_storage().resize_(4096),
    "share_memory_": lambda s: s.plain.share_memory_(),
    "torch.save": lambda s: torch.save(s.plain, io.BytesIO()),
    "torch.save of a state dict": lambda s: torch.save(s.model.state_dict(), io.BytesIO()),
    "pickle": lambda s: pickle.dumps(s.plain),
    "deepcopy of a tensor": lambda s: copy.deepcopy(s.plain),
    "deepcopy of a module": lambda s: copy.deepcopy(s.model),
    "forward": lambda s: s.model(s.outside),
    "backward": lambda s: s.loss.backward(retain_graph=True),
    "torch.autograd.grad": lambda s: torch.autograd.grad(s.loss, list(s.model.parameters()), retain_graph=True),
    "foreach": lambda s: torch._foreach_add([s.plain, s.outside], 1.0),
    "foreach in place": lambda s: torch._foreach_mul_([s.outside, s.plain], 2.0),
    "foreach copy": lambda s: torch._foreach_copy_([s.outside], [s.plain]),
    "foreach norm": lambda s: torch._foreach_norm([s.plain]),
    "AdamW foreach": lambda s: s.optimizers["foreach"].step(),
    "AdamW fused": lambda s: s.optimizers["fused"].step(),
    "AdamW single": lambda s: s.optimizers["single"].step(),
    "lerp_ of a parameter": in_no_grad(lambda s: s.weight.lerp_(s.outside, 0.5)),
    "load_state_dict": lambda s: s.model.load_state_dict({name: torch.zeros_like(value, device="cpu")
                                                          for name, value in s.model.state_dict().items()}),
    "vmap": lambda s: torch.vmap(torch.sum)(s.plain),
    "jvp": lambda s: torch.func.jvp(torch.sin, (s.plain,), (s.outside,)),
    "memoryview of numpy": lambda s: memoryview(s.plain.numpy()),
    "type view then sum": lambda s: s.plain.view(torch.int32).sum(),
    "a new view": lambda s: s.plain[1:].sum(),
    "a new view of the whole storage": lambda s: torch.as_strided(s.view, (64,), (1,), 0).sum(),
    "a tensor set_ onto the storage": lambda s: torch.empty(0).set_(s.plain.untyped_storage(), 0, (4,), (1,)).sum(),
    "detach": lambda s: s.weight.detach().sum(),
    ".data": lambda s: s.weight.data.sum(),
    "expand": lambda s: s.whole[:1].expand(5).sum(),
}


@pytest.fixture
def sleeper(shard):
    made = Sleeper()
    sw.adopt(made.adopted(), shard)
    return made


@pytest.mark.parametrize("kind", USES)
def test_a_use_of_a_sleeping_tensor_raises_our_text_and_works_after_the_wake(kind, sleeper, shard):
    sw.sleep(shard)
    try:
        with pytest.raises((RuntimeError, BufferError), match=f"shard '{shard.name}' is asleep.*host_view") as raised:
            USES[kind](sleeper)
        assert not isinstance(raised.value, torch.OutOfMemoryError)
    finally:
        sw.wake(shard)
    assert sw.shard_of(sleeper.plain) is shard, "the failed use moved nothing"
    assert sleeper.plain.equal(torch.arange(64.0).reshape(8, 8)), "nor changed a byte"
    assert sleeper.whole.equal(torch.arange(16))
    USES[kind](sleeper)


def test_a_compiled_forward_raises_and_runs_after_the_wake_without_being_compiled_again(sleeper, shard):
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(sleeper.model, backend=counter)
    before = compiled(sleeper.outside)
    sw.sleep(shard)
    with pytest.raises(RuntimeError, match=f"shard '{shard.name}' is asleep"):
        compiled(sleeper.outside)
    sw.wake(shard)
    assert compiled(sleeper.outside).equal(before)
    assert counter.frame_count == 1


def test_the_memory_of_a_sleeping_tensor_does_not_grow(sleeper, shard):
    sw.sleep(shard)
    with pytest.raises(RuntimeError, match=f"shard '{shard.name}' is asleep"):
        sleeper.plain.resize_(100, 100)
    assert sleeper.plain.untyped_storage().nbytes() == 256
    sleeper.plain.resize_(8, 8)  # PyTorch sets the shape before it asks for memory, whatever allocator refuses
    sw.wake(shard)
    assert sleeper.plain.equal(torch.arange(64.0).reshape(8, 8))
    sleeper.plain.resize_(100, 100)
    assert sw.shard_of(sleeper.plain) is shard and sleeper.plain.flatten()[:64].equal(torch.arange(64.0))


def test_what_needs_no_memory_works_while_asleep(sleeper, shard):
    addresses = [sw.address(tensor) for tensor in (sleeper.plain, sleeper.view, sleeper.weight)]
    sleeper.weight.grad = torch.ones(8, 8)
    sw.sleep(shard)
    assert not sw.is_awake(sleeper.plain) and not sw.is_awake(sleeper.view) and sw.is_awake(sleeper.outside)
    assert sw.shard_of(sleeper.view) is shard
    assert [sw.address(tensor) for tensor in (sleeper.plain, sleeper.view, sleeper.weight)] == addresses
    assert addresses[1] == addresses[0] + 2 * 8 * 4, "a view's address counts its offset"
    assert (sleeper.view.shape, sleeper.view.stride(), sleeper.view.storage_offset()) == ((8, 2), (1, 8), 16)
    assert (sleeper.plain.numel(), sleeper.plain.dtype, sleeper.plain.nbytes, sleeper.plain.is_contiguous()) == (
        64, torch.float32, 256, True)
    assert sleeper.plain.untyped_storage().nbytes() == 256 and sleeper.plain.untyped_storage().size() == 256
    assert set(sleeper.model.state_dict()) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}
    assert len(sleeper.optimizers["fused"].state_dict()["state"]) == 1
    sleeper.model.zero_grad(set_to_none=True)
    for optimizer in sleeper.optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    assert sleeper.weight.grad is None
    sleeper.model.train(False)
    sleeper.model.requires_grad_(False)
    assert torch.empty_like(sleeper.plain).shape == (8, 8) and torch.zeros_like(sleeper.plain).sum() == 0
    assert sleeper.plain.view(-1).shape == (64,) and sleeper.plain.t().is_contiguous() is False
    assert {sleeper.plain: 1}[sleeper.plain] == 1 and sleeper.plain is not sleeper.view
    assert "Linear" in repr(sleeper.model)
    del sleeper.plain
    sw.wake(shard)
    assert sleeper.view.equal(torch.arange(16.0, 32.0).reshape(2, 8).t())


def test_a_view_made_before_and_one_made_asleep_raise_alike(shard):
    base = torch.arange(100.0)
    before = base[10:20]
    sw.adopt([base], shard)
    sw.sleep(shard)
    during = base.view(10, 10)[3]
    for view in (before, during):
        with pytest.raises(RuntimeError, match="asleep"):
            view.sum()
    sw.wake(shard)
    assert before.sum() == sum(range(10, 20)) and during.sum() == sum(range(30, 40))


def test_a_failed_sleep_leaves_every_tensor_usable(sleeper, make_shard, shard):
    stray = torch.nn.Linear(2, 2)
    sw.adopt(stray, shard)
    stray.weight.data = torch.ones(2, 2)
    with pytest.raises(sw.Stray):
        sw.sleep(shard)
    assert sleeper.plain.sum() == sum(range(64))
    other = make_shard()
    inside = torch.ones(1 << 20)
    sw.adopt([inside], other)
    with pytest.raises(sw.InvalidArgument, match="-1"):
        sw.sleep(other, timeout=-1)
    assert other.state == "awake" and inside.sum() == 1 << 20


def test_a_storage_that_is_named_to_a_sleeping_shard_keeps_raising(shard):
    inside, outside = torch.ones(10), torch.full((10,), 2.0)
    sw.adopt([inside], shard)
    sw.sleep(shard)
    assert sw.adopt([inside], shard).taken_in == 1
    with pytest.raises(RuntimeError, match="asleep"):
        inside.sum()
    with pytest.raises(sw.Asleep, match=shard.name):
        sw.adopt([outside], shard)
    assert outside.sum() == 20 and sw.shard_of(outside) is None
    sw.wake(shard)
    assert inside.sum() == 10
    sw.adopt([outside], shard)
    assert outside.sum() == 20 and sw.shard_of(outside) is shard


def test_a_tensor_of_a_pool_is_guarded_once_it_is_taken_in(shard):
    with shard.pool():
        made = torch.arange(50.0)
    address = made.data_ptr()
    assert sw.adopt([made], shard).taken_in == 1
    assert made.data_ptr() == address
    sw.sleep(shard)
    with pytest.raises(RuntimeError, match="asleep"):
        made.sum()
    sw.wake(shard)
    assert made.sum() == sum(range(50))


def test_what_is_freed_while_asleep_is_gone_and_the_rest_wakes_exact(shard):
    kept = {size: torch.full((size,), float(size)) for size in (1, 1000, 300000)}
    dropped = [torch.ones(size) for size in (5, 2000, 500000)]
    sw.adopt([kept, dropped], shard)
    sw.sleep(shard)
    dropped.clear()
    sw.wake(shard)
    for size, tensor in kept.items():
        assert tensor.eq(size).all()
    assert shard.stats().blocks == 3


def test_only_the_shards_that_sleep_raise(make_shard):
    one, other = make_shard(), make_shard()
    first, second = torch.ones(10), torch.ones(10)
    sw.adopt([first], one)
    sw.adopt([second], other)
    sw.sleep(one)
    assert second.add_(1).sum() == 20
    with pytest.raises(RuntimeError, match=one.name):
        first + second


def test_the_text_names_the_way_out_and_is_not_the_last_words_of_pytorch(shard):
    tensor = torch.ones(3)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    with pytest.raises(RuntimeError) as raised:
        tensor + 1
    text = str(raised.value)
    assert text.startswith("stillwake: shard") and "Wake it" in text and "host_view" in text
    assert "FakeTensor" not in text and "meta" not in text


def test_a_hundred_cycles_of_the_guard_leave_no_trace(shard):
    tensor = torch.arange(10.0)
    sw.adopt([tensor], shard)
    for _ in range(100):
        sw.sleep(shard)
        with pytest.raises(RuntimeError, match="asleep"):
            tensor.sum()
        sw.wake(shard)
        assert tensor.sum() == 45
    assert numpy.shares_memory(tensor.numpy(), tensor[2:].numpy())


def test_what_a_pool_made_raises_asleep_and_works_awake(shard):
    with shard.pool():
        made = torch.ones(1000)
        layer = torch.nn.Linear(10, 10)
        view = made[10:20]
    sw.sleep(shard)
    for use in (made.sum, view.sum, made.numpy, lambda: layer(torch.ones(1, 10)), lambda: made.add_(1)):
        with pytest.raises(RuntimeError, match="is asleep"):
            use()
    sw.wake(shard)
    assert made.sum() == 1000 and view.sum() == 10 and layer(torch.ones(1, 10)).shape == (1, 10)


def test_a_fork_of_the_process_meets_an_error_and_not_a_signal(shard):
    import os

    tensor = torch.ones(100)
    sw.adopt([tensor], shard)
    with shard.pool():
        made = torch.ones(100)
    child = os.fork()
    if child == 0:
        refused = 0
        for each in (tensor, made):
            try:
                each.sum()
            except RuntimeError as error:
                refused += "was forked from" in str(error)
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 2
    assert tensor.sum() == 100, "nothing changed for the parent"


def test_what_was_shared_with_other_processes_left_the_shard_and_is_not_guarded(shard):
    """share_memory_() exchanges the memory of a storage: what is left is a stray, and usable as one."""
    model = torch.nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.fill_(2)
    sw.adopt(model, shard)
    model.share_memory()
    assert sw.shard_of(model.weight) is None and shard.stats().blocks == 0
    with pytest.raises(sw.Stray, match=r"weight \(36 bytes on cpu\)"):
        sw.sleep(shard)
    with pytest.warns(UserWarning, match="1 tensors \\(weight\\) stay outside .*'weight'.*shared memory"):
        sw.sleep(shard, strays="adopt")
    sw.wake(shard)
    sw.sleep(shard, strays="report")
    assert model.weight.sum() == 18 and sw.host_view(model)["weight"].sum() == 18


def test_a_storage_that_went_to_another_shard_is_guarded_by_that_one_alone(make_shard):
    first, second = make_shard(), make_shard()
    tensor = torch.ones(10)
    storage = tensor.untyped_storage()
    sw.adopt([tensor], first)
    storage.resize_(0)  # without memory it may be adopted anew
    sw.adopt([tensor], second)
    storage.resize_(40)
    assert sw.shard_of(tensor) is second
    sw.sleep(first)
    assert tensor.fill_(2).sum() == 20
    sw.sleep(second)
    sw.wake(first)
    with pytest.raises(RuntimeError, match=f"'{second.name}' is asleep"):
        tensor.sum()
    sw.wake(second)
    assert tensor.sum() == 20
