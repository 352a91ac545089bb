# SPDX-License-Identifier: Apache-2.0
"""Trainings of one process that sleep between their steps equal those that do not, bit for bit, at the same
addresses."""
import itertools

import pytest
import stillwake as sw
import torch
import torch._dynamo.testing
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint
from training import WIDTH, WORDS, Training, Words, compiled_while_it_slept, same_bytes

_numbers = itertools.count()


def attached(training, **options):
    number = next(_numbers)
    names = {"params": f"params-{number}", "optim": f"optim-{number}", "ema_shard": f"ema-{number}"}
    return sw.attach(training.model, training.optimizer, ema=training.ema or None, **{**names, **options})


def parameters(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


OPTIMIZERS = {
    "Adadelta": lambda model: torch.optim.Adadelta(model.parameters()),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters()),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters()),  # its state exists before the first step
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "AdamW, foreach": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True),
    "AdamW, fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
    "AdamW, tensor learning rate": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01)),
    "ASGD": lambda model: torch.optim.ASGD(model.parameters()),
    "LBFGS": lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=3),
    "NAdam": lambda model: torch.optim.NAdam(model.parameters(), lr=0.01),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.001, momentum=0.5, centered=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "SGD with momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "SGD with momentum, fused": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True),
}


class Recomputed(Words):
    def forward(self, words):
        self.seen += words.numel()
        x = self.embed(words) + self.turned.t()[: words.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x * self.gain)


class Recurrent(torch.nn.Module):
    """Modules that keep lists of their own weights, buffers that are written in training, a parametrization."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.recurrent = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(WIDTH, WORDS))

    def forward(self, words):
        return self.head(self.norm(self.recurrent(self.embed(words))[0]))


class Scaled(torch.Tensor):
    """A quantized weight: bytes and a scale inside a wrapper subclass, as the quantization libraries make them."""

    @staticmethod
    def __new__(cls, steps, scale):
        return torch.Tensor._make_wrapper_subclass(cls, steps.shape, strides=steps.stride(), dtype=scale.dtype,
                                                   device=steps.device)

    def __init__(self, steps, scale):
        self.steps, self.scale = steps, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def __tensor_flatten__(self):
        return ["steps", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inside, context, size, stride):
        return Scaled(inside["steps"], inside["scale"])

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        if function is torch.ops.aten.detach.default:
            return Scaled(arguments[0].steps, arguments[0].scale)

        def plain(value):
            return value.steps.to(value.scale.dtype) * value.scale if isinstance(value, Scaled) else value

        return function(*[plain(argument) for argument in arguments], **(keywords or {}))


def quantized():
    """A frozen base of eight bits, with biases, norms and a head that train."""
    model = Words()
    for block in model.blocks:
        for layer in (block.up, block.down):
            layer.weight = torch.nn.Parameter(Scaled.of(layer.weight.detach()), requires_grad=False)
    return model


def compiled():
    torch._dynamo.reset()
    return torch.compile(Words(), backend="aot_eager")


MODELS = {
    "plain": Words,
    "double precision": lambda: Words().double(),
    "bfloat16": lambda: Words().to(torch.bfloat16),
    "activation checkpointing": Recomputed,
    "recurrent, normalised, parametrized": Recurrent,
    "compiled": compiled,
    "quantized wrapper subclass": quantized,
    "averaged": lambda: torch.optim.swa_utils.AveragedModel(Words()),
}


def trains_the_same(make_model, make_optimizer, with_ema=True):
    control = Training(make_model, make_optimizer, with_ema).step(6)
    training = Training(make_model, make_optimizer, with_ema)
    job = attached(training)
    job.sleep()
    job.wake()
    for steps in (1, 2, 3):
        training.step(steps)
        before = {name: sw.address(tensor) for name, tensor in training.named()}
        assert job.sleep().report.live > 0
        asleep = {name: sw.address(tensor) for name, tensor in training.named()}
        job.wake()
        assert asleep == {name: sw.address(tensor) for name, tensor in training.named()}
        assert {name: asleep[name] for name, _ in training.model.named_parameters()} == {
            name: before[name] for name, _ in training.model.named_parameters()}, "only what came later moves, once"
        assert sw.audit(training.model, training.optimizer, training.ema) == []
    training.expect_same_as(control)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_that_slept_equals_one_that_did_not_whatever_the_optimizer(name):
    trains_the_same(Words, OPTIMIZERS[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_training_that_slept_equals_one_that_did_not_whatever_the_model(name):
    trains_the_same(MODELS[name], lambda model: torch.optim.AdamW(parameters(model), lr=0.01),
                    with_ema=name != "quantized wrapper subclass")


def test_a_quantized_weight_sleeps_by_the_tensors_inside_it():
    training = Training(quantized, lambda model: torch.optim.SGD(parameters(model), lr=0.1), with_ema=False)
    weight = training.model.blocks[0].up.weight
    steps, scale = weight.steps.clone(), weight.scale.clone()
    job = attached(training)
    assert sw.shard_of(weight) is sw.shard_of(weight.steps) is sw.shard_of(weight.scale) is job.shards[0]
    job.sleep()
    with pytest.raises(RuntimeError, match="asleep"):
        weight + 1
    view = sw.host_view(weight)
    assert type(view) is Scaled and same_bytes(view.steps, steps) and same_bytes(view.scale, scale)
    job.wake()
    assert weight is training.model.blocks[0].up.weight and same_bytes(weight.steps, steps)


def test_a_compiled_model_is_not_compiled_again_after_a_wake():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    control = Training(lambda: torch.compile(Words(), backend="aot_eager"),
                       lambda model: torch.optim.SGD(model.parameters(), lr=0.1)).step(6)
    torch._dynamo.reset()
    training = Training(lambda: torch.compile(Words(), backend=counter),
                        lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    job = attached(training)
    training.step(3)
    before, after = compiled_while_it_slept(training, job, counter)
    assert before == after
    training.expect_same_as(control)


def test_a_model_that_was_compiled_before_it_was_adopted_is_not_compiled_again():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    training = Training(lambda: torch.compile(Words(), backend=counter),
                        lambda model: torch.optim.SGD(model.parameters(), lr=0.1)).step(3)
    compiled_so_far = counter.frame_count
    job = attached(training)
    training.step()
    job.sleep()
    job.wake()
    training.step()
    assert counter.frame_count == compiled_so_far > 0


def test_a_learning_rate_in_a_tensor_follows_its_schedule_across_sleeps():
    def make(sleeps):
        training = Training(Words, lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01)))
        schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 2, 0.5)
        job = attached(training) if sleeps else None
        for _ in range(5):
            training.step()
            schedule.step()
            if job:
                job.sleep()
                job.wake()
        return training

    training, control = make(True), make(False)
    assert training.optimizer.param_groups[0]["lr"].equal(torch.tensor(0.0025))
    assert sw.shard_of(training.optimizer.param_groups[0]["lr"]) is not None
    training.expect_same_as(control)


def test_loaded_optimizer_state_is_taken_in_and_goes_on():
    make = Words, OPTIMIZERS["AdamW, foreach"]
    control = Training(*make).step(3)
    saved_model = {name: tensor.clone() for name, tensor in control.model.state_dict().items()}
    saved_state = tree_map_only(torch.Tensor, torch.clone, control.optimizer.state_dict())
    training = Training(*make, with_ema=False).step()
    job = attached(training)
    training.model.load_state_dict(saved_model)
    training.optimizer.load_state_dict(saved_state)
    assert sw.audit(training.model, training.optimizer) == []
    job.sleep()
    job.wake()
    training.steps = control.steps
    training.step(2)
    control.step(2)
    for name, tensor in training.content().items():
        assert same_bytes(tensor, control.content()[name]), name


def test_an_optimizers_hooks_are_gone_after_its_first_step_and_never_doubled():
    training = Training(Words, OPTIMIZERS["SGD"])
    for _ in range(3):
        job = attached(training, params="same params", optim="same optim", ema_shard="same ema")
    optimizer = training.optimizer
    assert len(optimizer._optimizer_step_post_hooks) == len(optimizer._optimizer_load_state_dict_post_hooks) == 1
    training.step()
    assert not optimizer._optimizer_step_post_hooks, "no call into the package in a step, state or not"
    job.sleep()
    job.wake()


def test_a_first_step_beside_a_sleeping_optimizer_shard_is_taken_in_by_a_later_one(make_shard):
    """FR-G7"""
    params, optim = make_shard(), make_shard()
    training = Training(Words, OPTIMIZERS["Adam"], with_ema=False)
    sw.adopt(training.model, params)
    sw.adopt(training.optimizer, optim)
    sw.sleep(params, optim)
    sw.wake(params)
    training.step()
    assert len(sw.audit(training.optimizer)) > 0
    sw.wake(optim)
    training.step()
    assert sw.audit(training.optimizer) == []
    training.expect_same_as(Training(Words, OPTIMIZERS["Adam"], with_ema=False).step(2))


def test_a_step_that_was_done_is_not_undone_by_a_full_shard(make_shard):
    control = Training(Words, OPTIMIZERS["Adam"], with_ema=False).step(2)
    training = Training(Words, OPTIMIZERS["Adam"], with_ema=False)
    small = make_shard("small", addresses=2 << 20)
    with small.pool():
        filling = torch.empty((2 << 20) - 512, dtype=torch.uint8)
    sw.adopt(training.optimizer, small)
    with pytest.warns(UserWarning, match="stays outside of shard"):
        training.step()
    del filling
    training.step()
    training.expect_same_as(control)
    sw.sleep(small, strays="adopt")
    sw.wake(small)
    assert all(sw.shard_of(tensor) is small for state in training.optimizer.state.values() for tensor in state.values())


def test_an_optimizer_may_outlive_the_shard_that_it_was_adopted_into():
    shard = sw.shard("closed before the first step")
    training = Training(Words, OPTIMIZERS["Adam"], with_ema=False)
    sw.adopt(training.optimizer, shard)
    shard.close()
    training.step(2)
    training.optimizer.load_state_dict(training.optimizer.state_dict())
    training.expect_same_as(Training(Words, OPTIMIZERS["Adam"], with_ema=False).step(2))


def test_an_ema_whose_tensors_were_replaced_is_found_before_a_sleep():
    training = Training(Words, OPTIMIZERS["SGD"]).step()
    job = attached(training, strays="error")
    training.ema["gain"] = training.ema["gain"].clone()
    with pytest.raises(sw.Stray, match="gain") as raised:
        job.sleep()
    assert raised.value.strays == (("gain", WIDTH * 4),) and job.is_awake
    sw.adopt(training.ema, job.shards[2])
    job.sleep()
    job.wake()
    training.step()
    training.expect_same_as(Training(Words, OPTIMIZERS["SGD"]).step(2))


def test_a_failed_sleep_and_a_failed_wake_leave_the_training_as_it_was():
    """FR-C2"""
    control = Training(Words, OPTIMIZERS["Adam"]).step(4)
    training = Training(Words, OPTIMIZERS["Adam"]).step()
    job = attached(training)
    for fault, transition in (("cuMemHostRegister:1+", job.sleep), ("cuMemCreate:1+", job.wake)):
        sw._cpu.inject_faults(fault)
        try:
            with pytest.raises((sw.OutOfHostMemory, sw.OutOfMemory)):
                transition()
        finally:
            sw._cpu.inject_faults("")
        if job.is_awake:
            training.step()
        job.sleep()
    job.wake()
    training.step(2)
    training.expect_same_as(control)


def test_injected_faults_are_spelled_as_in_the_environment():
    with pytest.raises(sw.InvalidArgument, match="write CALL:NTH"):
        sw._cpu.inject_faults("cuMemMap")
    sw._cpu.inject_faults("cuMemCreate:1")
    assert sw._cpu.injected_faults() == 0
    sw._cpu.inject_faults("")
